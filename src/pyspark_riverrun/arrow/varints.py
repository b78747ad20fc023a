"""Reads zigzag varints, the encoding of numbers inside records, for many records at once.

Varints have no fixed layout. Each step reads one byte of every number that is not complete, and
most numbers have one or two bytes. ``byte_join`` writes varints.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from riverrun.records.batch import CorruptBatch

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

VARINT_BYTES_MAX = 10


def read_varints(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The numbers at these positions, and the positions after them.

    Raises IndexError beyond the end of the data, and CorruptBatch for a number that is too long.
    """
    byte = data[at]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    left = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(left):
        if shift >= 7 * VARINT_BYTES_MAX:
            raise CorruptBatch("a varint has more than 10 bytes")
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
    # Zigzag: an unsigned shift to the right; the lowest bit is the sign.
    return (value >> 1 & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), after


def zigzag(values: Integers) -> npt.NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def sizes_of(zigzagged: npt.NDArray[np.uint64]) -> Integers:
    """The encoded size of each number in bytes."""
    sizes = np.ones(len(zigzagged), np.int64)
    largest = int(zigzagged.max()) if len(zigzagged) else 0
    limit = 0x80
    while largest >= limit:
        sizes += zigzagged >= np.uint64(limit)
        limit <<= 7
    return sizes
