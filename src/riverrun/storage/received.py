"""What a leader sent, checked before any of it is written.

Called for every batch that is replicated, so it reads each header once and allocates little.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from riverrun.ports.files import Buffer
from riverrun.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
    check_remainder,
)
from riverrun.records.checksum import crc32c
from riverrun.storage.index import OFFSETS_SPAN_MAX

_unpack = HEADER.unpack_from
_make = tuple.__new__


class Received(NamedTuple):
    """Batches that may be appended together, to one segment."""

    headers: list[BatchHeader]
    size_bytes: int
    newest_timestamp: int


def sound_batches(
    data: Buffer, expected: int, epoch_max: int, batches_max: int, bytes_max: int
) -> Received:
    """The whole batches at the beginning, from offset ``expected`` on.

    It ends early, but never before the first, at a batch that would be too many or too much, or
    too far for one index; and at one of an epoch above ``epoch_max``, be it the first. Raises
    ``CorruptBatch``: the CRC of each is checked, for what is appended here is trusted from then on.
    """
    view = memoryview(data)
    end = len(view)
    found: list[BatchHeader] = []
    at, span_end, newest = 0, 0, -1
    while end - at >= HEADER_BYTES:
        try:
            header: BatchHeader = _make(BatchHeader, _unpack(view, at))
        except struct.error as error:
            raise CorruptBatch(f"no batch at {at}: {error}") from None
        base, length, epoch, magic, crc, _, delta, _, timestamp, _, _, _, _ = header
        if length < LENGTH_MIN or magic != MAGIC:
            raise CorruptBatch(f"no batch at {at}: length {length}, magic {magic}")
        stop = at + length + OVERHEAD_BYTES
        if stop > end:
            return Received(found, at, newest)
        if base < expected or delta < 0:
            raise CorruptBatch(f"offset {base} where {expected} is next")
        if not found:
            span_end = base + OFFSETS_SPAN_MAX
        elif stop > bytes_max or base + delta > span_end or len(found) >= batches_max:
            return Received(found, at, newest)
        if epoch > epoch_max:
            return Received(found, at, newest)
        if crc32c(view[at + CRC_START : stop]) != crc:
            raise CorruptBatch(f"the batch at {at} does not match its CRC")
        found.append(header)
        newest = max(newest, timestamp)
        expected = base + delta + 1
        at = stop
    check_remainder(view, at)
    return Received(found, at, newest)
