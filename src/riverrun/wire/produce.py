"""A hand-written codec for Produce. It parses requests in place and does not copy batches, because
the hot path handles bytes and never records.

Versions 0 to 13 are parsed; 0 to 2 only to reject them in their own version (KAFKA-18659). Property
tests compare this codec with kio.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.wire.primitives import (
    INT32,
    Buffer,
    MalformedRequest,
    check_items,
    read_compact_count,
    read_compact_text,
    read_compact_text_or_null,
    read_count,
    read_text,
    read_text_or_null,
    read_varint,
    skip_tagged_fields,
    write_compact_count,
    write_compact_text,
    write_compact_text_or_null,
    write_count,
    write_text,
    write_text_or_null,
    write_varint,
)

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13
SERVED_FROM = 3
NO_RECORDS = -1

_ACKS = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_PARTITION = struct.Struct(">ihq")
_INT64 = struct.Struct(">q")
_ONE_SUCCESS = struct.Struct(">BihqqqBBBBiB")
"""The common response: one partition, no error, no optional fields."""
_NO_DETAILS = ((), None, None)


class ProducePartition(NamedTuple):
    """The batch of a partition: ``buffer[start:end]``; ``start`` is -1 for null."""

    topic: str | UUID
    partition: int
    start: int
    end: int


class ProduceCall(NamedTuple):
    acks: int
    timeout_ms: int
    transactional_id: str | None
    partitions: list[ProducePartition]


class NodeEndpoint(NamedTuple):
    """The address of a leader, for clients that used another node (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ProduceResult(NamedTuple):
    """The result for one partition, in the order of the request."""

    topic: str | UUID
    partition: int
    error_code: int = ErrorCode.NONE
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    leader: tuple[int, int] | None = None
    """Id and epoch of the leader that the client should use instead."""


@lru_cache(maxsize=4096)
def topic_id_of(raw: bytes) -> UUID:
    """Cached, because constructing a UUID is slow and clients repeat the same few topics."""
    return UUID(bytes=raw)


def read_topic_id(buffer: Buffer, at: int) -> tuple[UUID, int]:
    raw = bytes(buffer[at : at + 16])
    if len(raw) < 16:
        raise MalformedRequest("topic id beyond the end")
    return topic_id_of(raw), at + 16


def produce_request_around(
    version: int,
    *,
    acks: int,
    timeout_ms: int,
    topic: str | UUID,
    partition: int,
    size: int,
    transactional_id: str | None = None,
) -> tuple[bytes, bytes]:
    """The bytes before and after a batch of this size in a request with no other batch.

    The caller can send the batch without copying it.
    """
    assert version >= SERVED_FROM, f"version {version} does not support batches"
    out = bytearray()
    if version < FLEXIBLE_FROM:
        assert isinstance(topic, str), f"topic {topic} by id in version {version}"
        write_text_or_null(out, transactional_id)
        out += _ACKS.pack(acks, timeout_ms)
        write_count(out, 1)
        write_text(out, topic)
        write_count(out, 1)
        out += _INDEX.pack(partition) + _INDEX.pack(size)
        return bytes(out), b""
    write_compact_text_or_null(out, transactional_id)
    out += _ACKS.pack(acks, timeout_ms)
    write_compact_count(out, 1)
    _write_topic(out, topic, version)
    write_compact_count(out, 1)
    out += _INDEX.pack(partition)
    write_compact_count(out, size)
    return bytes(out), b"\x00\x00\x00"


def parse_produce(buffer: Buffer, at: int, version: int) -> ProduceCall:
    """Parse the request between ``at`` and the end of the buffer."""
    try:
        if version >= FLEXIBLE_FROM:
            call, stop = _parse_flexible(buffer, at, version)
        else:
            call, stop = _parse_plain(buffer, at, version)
        if stop != len(buffer):
            raise MalformedRequest(f"{len(buffer) - stop} bytes too many")
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"produce v{version} request: {error}") from error
    return call


def _parse_plain(buffer: Buffer, at: int, version: int) -> tuple[ProduceCall, int]:
    end = len(buffer)
    transactional_id = None
    if version >= SERVED_FROM:
        transactional_id, at = read_text_or_null(buffer, at, end)
    acks, timeout_ms = _ACKS.unpack_from(buffer, at)
    topics, at = read_count(buffer, at + 6, end, 6)
    partitions: list[ProducePartition] = []
    if topics < 0:
        raise MalformedRequest("null for topics")
    check_items(topics)
    for _ in range(topics):
        topic, at = read_text(buffer, at, end)
        count, at = read_count(buffer, at, end, 8)
        if count < 0:
            raise MalformedRequest("null for partitions")
        check_items(len(partitions) + count)
        for _ in range(count):
            index = INT32.unpack_from(buffer, at)[0]
            size = INT32.unpack_from(buffer, at + 4)[0]
            at += 8
            if size < 0:
                partitions.append(ProducePartition(topic, index, NO_RECORDS, NO_RECORDS))
                continue
            stop = at + size
            if stop > end:
                raise MalformedRequest(f"records of {size} bytes with {end - at} left")
            partitions.append(ProducePartition(topic, index, at, stop))
            at = stop
    return ProduceCall(acks, timeout_ms, transactional_id, partitions), at


def _parse_flexible(buffer: Buffer, at: int, version: int) -> tuple[ProduceCall, int]:
    # Most lengths take one byte and most optional fields are absent. These cases are inlined,
    # because a function call costs more than the parsing.
    end = len(buffer)
    transactional_id = None
    if buffer[at]:
        transactional_id, at = read_compact_text_or_null(buffer, at, end)
    else:
        at += 1
    acks, timeout_ms = _ACKS.unpack_from(buffer, at)
    topics, at = read_compact_count(buffer, at + 6, end, 3)
    if topics < 0:
        raise MalformedRequest("null for topics")
    check_items(topics)
    partitions: list[ProducePartition] = []
    topic: str | UUID
    for _ in range(topics):
        if version >= TOPIC_IDS_FROM:
            topic, at = read_topic_id(buffer, at)
        else:
            topic, at = read_compact_text(buffer, at, end)
        count = buffer[at] - 1
        at += 1
        if count >= 127:
            count, at = read_compact_count(buffer, at - 1, end, 6)
        elif count < 0:
            raise MalformedRequest("null for partitions")
        check_items(len(partitions) + count)
        for _ in range(count):
            index = _INDEX.unpack_from(buffer, at)[0]
            size, at = read_varint(buffer, at + 4)
            if size == 0:
                partitions.append(ProducePartition(topic, index, NO_RECORDS, NO_RECORDS))
            else:
                stop = at + size - 1
                if stop > end:
                    raise MalformedRequest(f"records of {size - 1} bytes with {end - at} left")
                partitions.append(ProducePartition(topic, index, at, stop))
                at = stop
            at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1
        at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1
    at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1
    return ProduceCall(acks, timeout_ms, transactional_id, partitions), at


def by_topic(results: Sequence[ProduceResult]) -> list[tuple[str | UUID, list[ProduceResult]]]:
    """Group adjacent results of a topic."""
    groups: list[tuple[str | UUID, list[ProduceResult]]] = []
    for result in results:
        if groups and groups[-1][0] == result.topic:
            groups[-1][1].append(result)
        else:
            groups.append((result.topic, [result]))
    return groups


@lru_cache(maxsize=4096)
def _topic_start(topic: str | UUID, version: int) -> bytes:
    """A topic array with one item, up to its partitions, in a flexible version."""
    out = bytearray(b"\x02")
    _write_topic(out, topic, version)
    return bytes(out)


def _write_topic(out: bytearray, topic: str | UUID, version: int) -> None:
    if isinstance(topic, str):
        assert version < TOPIC_IDS_FROM, f"topic {topic} by name in version {version}"
        write_compact_text(out, topic)
    else:
        assert version >= TOPIC_IDS_FROM, f"topic {topic} by id in version {version}"
        out += topic.bytes


def encode_produce_response(
    version: int,
    results: Sequence[ProduceResult],
    *,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> bytes:
    """The body of the response."""
    if len(results) == 1 and version >= FLEXIBLE_FROM and not node_endpoints:
        result = results[0]
        if result[2] == 0 and result[6:] == _NO_DETAILS:
            return _topic_start(result.topic, version) + _ONE_SUCCESS.pack(
                2,
                result.partition,
                0,
                result.base_offset,
                result.log_append_time_ms,
                result.log_start_offset,
                1,
                0,
                0,
                0,
                throttle_ms,
                0,
            )
    out = bytearray()
    groups = by_topic(results)
    if version >= FLEXIBLE_FROM:
        _encode_flexible(out, version, groups)
        out += _INDEX.pack(throttle_ms)
        if node_endpoints and version >= 10:
            write_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    else:
        _encode_plain(out, version, groups)
        if version >= 1:
            out += _INDEX.pack(throttle_ms)
    return bytes(out)


def _encode_plain(
    out: bytearray, version: int, groups: list[tuple[str | UUID, list[ProduceResult]]]
) -> None:
    write_count(out, len(groups))
    for topic, results in groups:
        assert isinstance(topic, str), f"topic {topic} by id in version {version}"
        write_text(out, topic)
        write_count(out, len(results))
        for result in results:
            out += _PARTITION.pack(result.partition, result.error_code, result.base_offset)
            if version >= 2:
                out += _INT64.pack(result.log_append_time_ms)
            if version >= 5:
                out += _INT64.pack(result.log_start_offset)
            if version >= 8:
                write_count(out, len(result.record_errors))
                for batch_index, message in result.record_errors:
                    out += _INDEX.pack(batch_index)
                    write_text_or_null(out, message)
                write_text_or_null(out, result.error_message)


def _encode_flexible(
    out: bytearray, version: int, groups: list[tuple[str | UUID, list[ProduceResult]]]
) -> None:
    write_compact_count(out, len(groups))
    for topic, results in groups:
        _write_topic(out, topic, version)
        write_compact_count(out, len(results))
        for result in results:
            out += _PARTITION.pack(result.partition, result.error_code, result.base_offset)
            out += _INT64.pack(result.log_append_time_ms)
            out += _INT64.pack(result.log_start_offset)
            write_compact_count(out, len(result.record_errors))
            for batch_index, message in result.record_errors:
                out += _INDEX.pack(batch_index)
                write_compact_text_or_null(out, message)
                out.append(0)
            write_compact_text_or_null(out, result.error_message)
            if version >= 10 and result.leader is not None and result.leader != (-1, -1):
                out += struct.pack(">bbbiib", 1, 0, 9, *result.leader, 0)
            else:
                out.append(0)
        out.append(0)


def write_node_endpoints(out: bytearray, node_endpoints: Sequence[NodeEndpoint]) -> None:
    """Write the tagged fields of a Produce or Fetch response: tag 0, the node endpoints."""
    value = bytearray()
    write_compact_count(value, len(node_endpoints))
    for endpoint in node_endpoints:
        value += _INDEX.pack(endpoint.node_id)
        write_compact_text(value, endpoint.host)
        value += _INDEX.pack(endpoint.port)
        write_compact_text_or_null(value, endpoint.rack)
        value.append(0)
    out += b"\x01\x00"
    write_varint(out, len(value))
    out += value
