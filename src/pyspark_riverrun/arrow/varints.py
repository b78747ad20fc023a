"""Zigzag varints, many at a time: how numbers are written inside records.

A number takes one byte here and three there, so there is no fixed layout to read them by; but it
can be done for all records at once, one byte of each per step, and most numbers have one byte or
two. ``gather`` writes them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riverrun.records.batch import CorruptBatch

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

VARINT_BYTES_MAX = 10


def read_varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The numbers at these positions, and the positions behind them.

    Raises IndexError at the end of the data, CorruptBatch for what is too long for a number.
    """
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    left = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(left):
        if shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptBatch("a number of more than 10 bytes")
        if len(left) == len(at):
            byte = data[after]
            value |= (byte & 0x7F).astype(np.int64) << shift
            after += 1
        else:
            byte = data[after[left]]
            value[left] |= (byte & 0x7F).astype(np.int64) << shift
            after[left] += 1
        left = left[byte > 0x7F]
        shift += 7
    # Zigzag: a shift to the right that does not keep the sign, then the lowest bit says it.
    return (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), after


def zigzag(values: Integers) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def sizes_of(zigzagged: npt.NDArray[np.uint64]) -> Integers:
    """How many bytes each number takes."""
    sizes = np.ones(len(zigzagged), np.int64)
    largest = int(zigzagged.max()) if len(zigzagged) else 0
    limit = 0x80
    while largest >= limit:
        sizes += zigzagged >= np.uint64(limit)
        limit <<= 7
    return sizes
