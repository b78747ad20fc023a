"""Validates batches from producers, with the error codes of Apache Kafka.

Validation reads the header and the CRC. It reads records only if it must: to check keys on
compacted topics, and to recompress. So errors that a producer made *inside* a batch with a valid
CRC (a wrong record count, a wrong maximum timestamp) reach the consumers. The log checks sequences
of idempotent producers.
"""

from __future__ import annotations

from typing import NoReturn

from crc32c import crc32c
from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER_BYTES,
    LENGTH_MIN,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    NO_TIMESTAMP,
    OVERHEAD_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    clear_log_append_time,
    read_header,
    stamp_log_append_time,
)
from riverrun.records.compression import Compression
from riverrun.records.record import Span, payload_of, read_headers, rebuild_batch, spans

UNLIMITED_MS = 2**63 - 1
DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""The maximum decompressed size of a produced batch, where its records are read."""

_RECORD_ERRORS_SHOWN = 3
_ODD_BITS = CONTROL_BIT | LOG_APPEND_TIME_BIT


class InvalidRecord(KafkaError):
    """A batch rejected because of some records, given by their indexes in the batch (KIP-467)."""

    def __init__(
        self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...] = ()
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class Limits(Struct, frozen=True, kw_only=True):
    """The topic settings that produced batches are checked against."""

    bytes_max: int
    timestamp_before_max_ms: int = UNLIMITED_MS
    timestamp_after_max_ms: int = UNLIMITED_MS
    is_compacted: bool = False
    compression: Compression | None = None
    """The codec of stored batches; None keeps the producer's codec."""
    level: int | None = None
    log_append_time: bool = False


def check_produced(
    batch: bytearray | memoryview, limits: Limits, now_ms: int
) -> tuple[Buffer, BatchHeader]:
    """Validate a batch. Returns the batch to store and its header; raises ``KafkaError``.

    The result is the same buffer, possibly with a changed header, or a new buffer.
    """
    if len(batch) < HEADER_BYTES:
        _reject_fragment(batch)
    header = read_header(batch)
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        base_sequence,
        count,
    ) = header
    size = length + OVERHEAD_BYTES
    view = memoryview(batch)
    if size != len(view) or magic != MAGIC:
        view = batch = _only_batch(view, header)
    if base_offset != 0:
        raise _invalid(f"The base offset of a produced batch must be 0, not {base_offset}")
    if size > limits.bytes_max:
        raise _too_large(size, limits)
    if crc32c(view[CRC_START:]) != crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "The batch does not match its CRC")
    codec = attributes & COMPRESSION_MASK
    if (
        count <= 0
        or last_offset_delta != count - 1
        or attributes & _ODD_BITS
        or (producer_id >= 0 and base_sequence < 0)
        or codec > Compression.ZSTD
    ):
        batch, header = _check_rare_cases(batch, header, limits)
    if limits.log_append_time:
        stamp_log_append_time(view, 0, size, now_ms)
        header = read_header(view)
    elif (
        max_timestamp - now_ms > limits.timestamp_after_max_ms
        or now_ms - base_timestamp > limits.timestamp_before_max_ms
    ):
        _check_timestamps(batch, header, limits, now_ms)
    if limits.is_compacted or (limits.compression is not None and limits.compression != codec):
        return _check_records(batch, header, limits)
    return batch, header


def _invalid(message: str) -> InvalidRecord:
    return InvalidRecord(ErrorCode.INVALID_RECORD, message)


def _too_large(size: int, limits: Limits) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The batch of {size} bytes exceeds the largest that is allowed, {limits.bytes_max}",
    )


def _reject_fragment(data: Buffer) -> NoReturn:
    """Reject less than a header: corrupt by its length or magic, otherwise truncated."""
    if len(data) >= OVERHEAD_BYTES:
        length = int.from_bytes(data[8:12], "big", signed=True)
        magic = data[16] if len(data) > 16 else MAGIC
        _check_shape(length, magic)
    raise _invalid("Produce requests must have at least one record batch")


def _check_shape(length: int, magic: int) -> None:
    """Reject other formats, like Kafka: an unknown magic or length is corrupt, others too old."""
    if not 0 <= magic <= MAGIC or length < (LENGTH_MIN if magic == MAGIC else 14):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"No record batch: length {length}, magic {magic}"
        )
    if magic != MAGIC:
        raise _invalid("Produce requests may contain record batches with magic version 2 only")


def _only_batch(view: memoryview, header: BatchHeader) -> memoryview:
    """The first batch, if no other follows it. Like Kafka, ignores a fragment after it."""
    if header.length + OVERHEAD_BYTES > len(view) and header.magic == MAGIC:
        raise _invalid("Produce requests must have at least one record batch")
    _check_shape(header.length, header.magic)
    rest = view[header.size :]
    if len(rest) >= OVERHEAD_BYTES:
        length = int.from_bytes(rest[8:12], "big", signed=True)
        if length < 14 or (len(rest) > 16 and rest[16] > MAGIC):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "Invalid data follows the record batch")
        if length + OVERHEAD_BYTES <= len(rest):
            raise _invalid("Produce requests may contain one record batch per partition only")
    return view[: header.size]


def _check_rare_cases(
    batch: bytearray | memoryview, header: BatchHeader, limits: Limits
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Raise the error for an unusual header; a few of them are valid."""
    if header.last_offset_delta < 0:
        raise _invalid(f"Batch has an invalid offset range: [0, {header.last_offset_delta}]")
    if header.count <= 0:
        raise _invalid(f"Invalid reported count for record batch: {header.count}")
    if header.last_offset_delta != header.count - 1:
        raise _invalid(
            f"Inconsistent batch offset range [0, {header.last_offset_delta}] "
            f"and count of records {header.count}"
        )
    if header.is_control:
        raise _invalid("Clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(
            f"Invalid sequence number {header.base_sequence} in record batch "
            f"with producerId {header.producer_id}"
        )
    if header.compression > Compression.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Unknown compression {header.compression}"
        )
    if header.has_log_append_time:
        if limits.log_append_time:
            message = "Producer should not set timestamp type to LogAppendTime"
            raise _rejected(
                ErrorCode.INVALID_TIMESTAMP,
                [(index, message) for index in range(min(header.count, len(batch)))],
            )
        clear_log_append_time(batch, 0, header.size)
        header = read_header(batch)
    return batch, header


def _rejected(code: ErrorCode, errors: list[tuple[int, str]]) -> InvalidRecord:
    if code == ErrorCode.INVALID_TIMESTAMP:
        message = "One or more records have been rejected due to invalid timestamp"
    else:
        shown = "; ".join(text for _, text in errors[:_RECORD_ERRORS_SHOWN])
        message = (
            f"One or more records have been rejected due to {len(errors)} record errors in total, "
            f"and only showing the first three errors at most: {shown}"
        )
    return InvalidRecord(code, message, tuple(errors))


def _read_spans(batch: Buffer, header: BatchHeader) -> tuple[bytes, list[Span]]:
    """The decompressed records and their spans, fully validated."""
    try:
        payload = payload_of(batch, header, DECOMPRESSED_BYTES_MAX)
        found = list(spans(payload, header.count))
        for index, (_, end, _, offset_delta, _, _, value_at, value_length) in enumerate(found):
            if offset_delta != index:
                raise CorruptBatch(f"record {index} has the offset delta {offset_delta}")
            read_headers(payload, value_at + max(value_length, 0), end)
    except CorruptBatch as error:
        raise _invalid(f"The records of the batch cannot be read: {error}") from None
    return payload, found


def _check_timestamps(batch: Buffer, header: BatchHeader, limits: Limits, now_ms: int) -> None:
    """Report the records whose timestamps are out of range, after the header's was."""
    earliest = now_ms - limits.timestamp_before_max_ms
    latest = now_ms + limits.timestamp_after_max_ms
    _, found = _read_spans(batch, header)
    errors = []
    for index, span in enumerate(found):
        timestamp = header.base_timestamp + span[2]
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest:
            errors.append(
                (
                    index,
                    f"Timestamp {timestamp} of message with offset {index} is out of range. "
                    f"The timestamp should be within [{earliest}, {latest}]",
                )
            )
    if errors:
        raise _rejected(ErrorCode.INVALID_TIMESTAMP, errors)
    if header.max_timestamp > latest:
        raise InvalidRecord(
            ErrorCode.INVALID_TIMESTAMP,
            f"The batch declares the timestamp {header.max_timestamp} that no record has",
        )


def _check_records(
    batch: bytearray | memoryview, header: BatchHeader, limits: Limits
) -> tuple[Buffer, BatchHeader]:
    """Check that records of a compacted topic have keys, and apply the topic's codec."""
    payload, found = _read_spans(batch, header)
    if limits.is_compacted:
        message = "Compacted topic cannot accept message without key"
        errors = [(index, message) for index, span in enumerate(found) if span[5] < 0]
        if errors:
            raise _rejected(ErrorCode.INVALID_RECORD, errors)
    if limits.compression is None or limits.compression == header.compression:
        return batch, header
    # Encoded records do not depend on the codec, so they are only compressed again.
    attributes = header.attributes & ~COMPRESSION_MASK | limits.compression
    rebuilt = rebuild_batch(header._replace(attributes=attributes), payload, limits.level)
    if len(rebuilt) > limits.bytes_max:
        raise _too_large(len(rebuilt), limits)
    return rebuilt, read_header(rebuilt)
