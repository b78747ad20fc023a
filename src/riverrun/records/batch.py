"""The header of a record batch, read and stamped in place.

These functions are the hot path of the broker. They take a buffer and a position and allocate
little. ``record`` reads the records after the header; ``validate`` decides whether a batch is
accepted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
OVERHEAD_BYTES = 12
"""Base offset and length field: the bytes that the length does not count."""
CRC_START = 21
"""The CRC starts at the attributes, so base offset and leader epoch can change."""
LENGTH_MIN = HEADER_BYTES - OVERHEAD_BYTES
MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_TIMESTAMP = -1

HEADER = struct.Struct(">qiibIhiqqqhii")
_FRAME = struct.Struct(">qiib")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_CRC_AT = 17
_MAX_TIMESTAMP_AT = 35

_unpack_header = HEADER.unpack_from
_make = tuple.__new__


class CorruptBatch(Exception):
    """Bytes that are not a record batch, or whose content has changed."""


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used here

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences wrap to 0 after 2**31 - 1."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def delete_horizon(self) -> int | None:
        """When tombstones may be removed (KIP-534). It is stored in the base timestamp field."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at a position. Its values are not validated."""
    try:
        return _make(BatchHeader, _unpack_header(buffer, at))
    except struct.error:
        raise CorruptBatch(f"{len(buffer) - at} bytes are too few for a batch header") from None


def crc_matches(buffer: Buffer, at: int, size: int) -> bool:
    """Whether the batch in [at, at + size) matches its CRC."""
    stored: int = _CRC.unpack_from(buffer, at + _CRC_AT)[0]
    return crc32c(memoryview(buffer)[at + CRC_START : at + size]) == stored


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, leader_epoch: int) -> None:
    """Set base offset and leader epoch. The CRC does not cover them."""
    _BASE_OFFSET.pack_into(buffer, at, base_offset)
    _LEADER_EPOCH.pack_into(buffer, at + 12, leader_epoch)


def write_crc(buffer: bytearray | memoryview, at: int, size: int) -> None:
    """Write the CRC of the current content."""
    _CRC.pack_into(buffer, at + _CRC_AT, crc32c(memoryview(buffer)[at + CRC_START : at + size]))


def write_split_crc(header: bytearray, body: Buffer) -> None:
    """Write the CRC of a header and of records in another buffer."""
    _CRC.pack_into(header, _CRC_AT, crc32c(body, crc32c(memoryview(header)[CRC_START:])))


def stamp_log_append_time(
    buffer: bytearray | memoryview, at: int, size: int, timestamp: int
) -> None:
    """Set one timestamp for all records. Readers then ignore the timestamps of the records."""
    attributes: int = _ATTRIBUTES.unpack_from(buffer, at + CRC_START)[0]
    _ATTRIBUTES.pack_into(buffer, at + CRC_START, attributes | LOG_APPEND_TIME_BIT)
    _MAX_TIMESTAMP.pack_into(buffer, at + _MAX_TIMESTAMP_AT, timestamp)
    write_crc(buffer, at, size)


def clear_log_append_time(buffer: bytearray | memoryview, at: int, size: int) -> None:
    """Clear the LogAppendTime flag of a producer; only the broker may set it."""
    attributes: int = _ATTRIBUTES.unpack_from(buffer, at + CRC_START)[0]
    _ATTRIBUTES.pack_into(buffer, at + CRC_START, attributes & ~LOG_APPEND_TIME_BIT)
    write_crc(buffer, at, size)


def batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every complete batch.

    Ignores a partial batch at the end, because a read by size ends anywhere. Does not check CRCs.
    """
    at = 0
    end = len(buffer)
    while end - at >= HEADER_BYTES:
        header = read_header(buffer, at)
        if header.length < LENGTH_MIN or header.magic != MAGIC:
            raise CorruptBatch(f"no batch at {at}: length {header.length}, magic {header.magic}")
        if header.size > end - at:
            return
        yield at, header
        at += header.size
    check_remainder(buffer, at)


def check_remainder(buffer: Buffer, at: int) -> None:
    """Check the start of a remainder that is too short for a header."""
    if len(buffer) - at < _FRAME.size:
        return
    _, length, _, magic = _FRAME.unpack_from(buffer, at)
    if length < LENGTH_MIN or magic != MAGIC:
        raise CorruptBatch(f"no batch at {at}: length {length}, magic {magic}")
