"""Reads the records inside a batch and builds batches.

``spans`` iterates over the records without copying them, for callers that need only keys.
``read_records`` returns records. ``build_batch`` builds a batch from new records, ``rebuild_batch``
from encoded records. All readers raise ``CorruptBatch`` for invalid input.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from msgspec import Struct

from riverrun.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    CorruptBatch,
    read_header,
    write_crc,
    write_split_crc,
)
from riverrun.records.compression import (
    DECOMPRESSED_BYTES_MAX,
    Compression,
    compress,
    decompress,
)

Headers = tuple[tuple[str, bytes | None], ...]

Span = tuple[int, int, int, int, int, int, int, int]
"""start, end, timestamp delta, offset delta, key at, key length, value at, value length.

A length of -1 means null. ``start`` is the position of the record's length field.
"""

RECORD_BYTES_MIN = 7
"""One byte each: length, attributes, two deltas, two null lengths, and the count of headers."""

_CONTROL_KEY = struct.Struct(">hh")


class Record(Struct, frozen=True):
    """A stored record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(Struct, frozen=True):
    """A record that has no offset yet."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int = NO_TIMESTAMP
    headers: Headers = ()


class ControlType(IntEnum):
    """Types of control records. The key of a control record is a version and this number."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6

    def key(self) -> bytes:
        return _CONTROL_KEY.pack(0, self)

    @classmethod
    def of(cls, key: bytes | None) -> ControlType | None:
        """The type of a control record with this key; None if it is unknown."""
        if key is None or len(key) < _CONTROL_KEY.size:
            return None
        number = _CONTROL_KEY.unpack_from(key)[1]
        return cls(number) if number in cls._value2member_map_ else None


def payload_of(
    batch: Buffer, header: BatchHeader, limit_bytes: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The encoded records of a batch, decompressed."""
    codec = header.attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise CorruptBatch(f"unknown compression {codec}")
    body = memoryview(batch)[HEADER_BYTES : header.size]
    if codec == Compression.NONE or not body:
        return bytes(body)
    return decompress(Compression(codec), body, limit_bytes=limit_bytes)


def spans(payload: bytes, count: int) -> Iterator[Span]:
    """The positions of the parts of each record, validated."""
    size = len(payload)
    if not 0 <= count <= size // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{count} records in {size} bytes")
    at = 0
    try:
        for _ in range(count):
            start = at
            length, at = _varint(payload, at)
            end = at + length
            if length < RECORD_BYTES_MIN - 1 or end > size:
                raise CorruptBatch(f"record of {length} bytes at {start} of {size}")
            timestamp_delta, at = _varint(payload, at + 1)
            offset_delta, at = _varint(payload, at)
            key_length, key_at = _varint(payload, at)
            at = key_at + key_length if key_length > 0 else key_at
            value_length, value_at = _varint(payload, at)
            at = value_at + value_length if value_length > 0 else value_at
            if at >= end or key_length < -1 or value_length < -1:
                raise CorruptBatch(f"key or value does not fit into the record at {start}")
            yield (
                start,
                end,
                timestamp_delta,
                offset_delta,
                key_at,
                key_length,
                value_at,
                value_length,
            )
            at = end
    except IndexError:
        raise CorruptBatch(f"truncated record at {at} of {size}") from None
    if at != size:
        raise CorruptBatch(f"{size - at} bytes follow the last record")


def read_records(batch: Buffer, limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """All records of a batch. Does not check the CRC."""
    header = read_header(batch)
    check_frame(header, len(batch))
    payload = payload_of(batch, header, limit_bytes)
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    fixed_timestamp = header.max_timestamp if header.has_log_append_time else None
    records = []
    for span in spans(payload, header.count):
        _, end, timestamp_delta, offset_delta, key_at, key_length, value_at, value_length = span
        headers_at = value_at + value_length if value_length > 0 else value_at
        records.append(
            Record(
                base_offset + offset_delta,
                base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp,
                payload[key_at : key_at + key_length] if key_length >= 0 else None,
                payload[value_at : value_at + value_length] if value_length >= 0 else None,
                read_headers(payload, headers_at, end),
            )
        )
    return records


def check_frame(header: BatchHeader, size: int) -> None:
    """Check that a buffer of this size contains exactly the batch."""
    if header.magic != MAGIC or header.length < LENGTH_MIN or header.size != size:
        raise CorruptBatch(
            f"{size} bytes are not a batch: length {header.length}, magic {header.magic}"
        )


def read_headers(payload: bytes, at: int, end: int) -> Headers:
    """The headers of a record. They must end where the record ends."""
    try:
        count, at = _varint(payload, at)
        if count == 0 and at == end:
            return ()
        if not 0 <= count <= end - at:
            raise CorruptBatch(f"{count} headers in {end - at} bytes")
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(count):
            length, at = _varint(payload, at)
            if not 0 <= length <= end - at:
                raise CorruptBatch(f"header name of {length} bytes")
            name = payload[at : at + length].decode("utf-8", "surrogateescape")
            at += length
            length, at = _varint(payload, at)
            if not -1 <= length <= end - at:
                raise CorruptBatch(f"header value of {length} bytes")
            headers.append((name, payload[at : at + length] if length >= 0 else None))
            at += max(length, 0)
    except IndexError:
        raise CorruptBatch("truncated headers") from None
    if at != end:
        raise CorruptBatch(f"record ends at {at}, not at {end}")
    return tuple(headers)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint and the position after it. Raises IndexError at the end of the data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise CorruptBatch(f"a number of more than 10 bytes before {at}")


def write_varint(output: bytearray, value: int) -> None:
    """Zigzag, as all numbers inside a record are."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    log_append_time_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """A batch of these records at consecutive offsets."""
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    else:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    payload = bytearray()
    for offset_delta, record in enumerate(records):
        _write_record(payload, record, offset_delta, record.timestamp - base_timestamp)
    attributes = (
        compression
        | (LOG_APPEND_TIME_BIT if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp if log_append_time_ms is None else log_append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return bytes(rebuild_batch(header, payload, level))


def rebuild_batch(header: BatchHeader, payload: Buffer, level: int | None = None) -> bytearray:
    """A batch of encoded records: compressed as the header says, with length and CRC."""
    if not payload:
        header = header._replace(attributes=header.attributes & ~COMPRESSION_MASK)
    codec = header.attributes & COMPRESSION_MASK
    body = payload if codec == Compression.NONE else compress(Compression(codec), payload, level)
    size = HEADER_BYTES + len(body)
    batch = bytearray(size)
    HEADER.pack_into(batch, 0, *header._replace(length=size - OVERHEAD_BYTES))
    batch[HEADER_BYTES:] = body
    write_crc(batch, 0, size)
    return batch


def header_of(header: BatchHeader, body: Buffer) -> bytes:
    """The encoded header of a batch whose compressed records are in another buffer."""
    start = bytearray(HEADER_BYTES)
    size = HEADER_BYTES + len(body)
    HEADER.pack_into(start, 0, *header[:1], size - OVERHEAD_BYTES, *header[2:])
    write_split_crc(start, body)
    return bytes(start)


def shifted(payload: bytes, span: Span, shift: int) -> bytes:
    """A record with a changed timestamp delta, for a batch with another base timestamp."""
    start, end, timestamp_delta = span[:3]
    _, at = _varint(payload, start)
    attributes = payload[at]
    _, at = _varint(payload, at + 1)
    body = bytearray((attributes,))
    write_varint(body, timestamp_delta + shift)
    body += payload[at:end]
    output = bytearray()
    write_varint(output, len(body))
    return bytes(output + body)


def _write_record(
    output: bytearray, record: NewRecord, offset_delta: int, timestamp_delta: int
) -> None:
    body = bytearray(1)  # attributes: none are defined
    write_varint(body, timestamp_delta)
    write_varint(body, offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode("utf-8", "surrogateescape"))
        _write_bytes(body, value)
    write_varint(output, len(body))
    output += body


def _write_bytes(output: bytearray, data: bytes | None) -> None:
    if data is None:
        output.append(1)  # -1 in zigzag
        return
    write_varint(output, len(data))
    output += data
