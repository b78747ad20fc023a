"""A hand-written codec for Fetch, versions 4 to 18, as brokers use it.

A response is a list of buffers, so that records read from a log are sent without a copy. Property
tests compare this codec with kio.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
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
    read_tag_count,
    read_text,
    read_varint,
    skip_tagged_fields,
    write_compact_count,
    write_compact_text,
    write_count,
    write_text,
    write_varint,
)
from riverrun.wire.produce import NodeEndpoint, read_topic_id, write_node_endpoints

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15
OWN_BUFFER_BYTES_MIN = 4096
"""Smaller records are copied, because a separate buffer costs the kernel more than the copy."""

_START_BEFORE_STATE = struct.Struct(">iiiib")
_START = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iq")
_PARTITION_4 = struct.Struct(">iqi")
_PARTITION_5 = struct.Struct(">iqqi")
_PARTITION_9 = struct.Struct(">iiqqi")
_PARTITION_12 = struct.Struct(">iiqiqi")
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")
_RESULT_4 = struct.Struct(">ihqq")
_RESULT_5 = struct.Struct(">ihqqq")
_NO_RACK = ""
OFFSET_MAX = 2**63 - 1


class FetchPartition(NamedTuple):
    """A partition in a Fetch request."""

    topic: str | UUID
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    replica_directory_id: UUID | None = None
    high_watermark: int = OFFSET_MAX
    """The high watermark of the follower (KIP-1166)."""


class FetchCall(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | UUID, int]]
    rack_id: str
    cluster_id: str | None


class FetchResult(NamedTuple):
    """The result for one partition."""

    topic: str | UUID
    partition: int
    error_code: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of each aborted transaction; null for read_uncommitted."""
    records: Buffer | None = b""
    preferred_read_replica: int = -1
    diverging: tuple[int, int] | None = None
    """(epoch, end offset)."""
    leader: tuple[int, int] | None = None
    """(id, epoch)."""
    snapshot: tuple[int, int] | None = None
    """(end offset, epoch)."""


def parse_fetch(buffer: Buffer, at: int, version: int) -> FetchCall:
    """Parse the request between ``at`` and the end of the buffer."""
    try:
        if version >= FLEXIBLE_FROM:
            call, stop = _parse_flexible(buffer, at, version)
        else:
            call, stop = _parse_plain(buffer, at, version)
        if stop != len(buffer):
            raise MalformedRequest(f"{len(buffer) - stop} bytes too many")
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"fetch v{version} request: {error}") from error
    return call


def _parse_plain(buffer: Buffer, at: int, version: int) -> tuple[FetchCall, int]:
    end = len(buffer)
    start = _START_BEFORE_STATE.unpack_from(buffer, at)
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = start
    at += 17
    session_id, session_epoch = 0, -1
    if version >= 7:
        session_id, session_epoch = _SESSION.unpack_from(buffer, at)
        at += 8
    partitions: list[FetchPartition] = []
    topics, at = read_count(buffer, at, end, 6)
    if topics < 0:
        raise MalformedRequest("null for topics")
    check_items(topics)
    for _ in range(topics):
        topic, at = read_text(buffer, at, end)
        count, at = read_count(buffer, at, end, 16)
        if count < 0:
            raise MalformedRequest("null for partitions")
        check_items(len(partitions) + count)
        for _ in range(count):
            epoch, start_offset = -1, -1
            if version >= 9:
                index, epoch, offset, start_offset, size = _PARTITION_9.unpack_from(buffer, at)
                at += 28
            elif version >= 5:
                index, offset, start_offset, size = _PARTITION_5.unpack_from(buffer, at)
                at += 24
            else:
                index, offset, size = _PARTITION_4.unpack_from(buffer, at)
                at += 16
            partitions.append(FetchPartition(topic, index, offset, size, epoch, -1, start_offset))
    forgotten: list[tuple[str | UUID, int]] = []
    if version >= 7:
        topics, at = read_count(buffer, at, end, 6)
        if topics < 0:
            raise MalformedRequest("null for forgotten topics")
        check_items(topics)
        for _ in range(topics):
            topic, at = read_text(buffer, at, end)
            at = _read_forgotten(buffer, at, end, topic, forgotten, is_flexible=False)
    rack_id = _NO_RACK
    if version >= 11:
        rack_id, at = read_text(buffer, at, end)
    call = FetchCall(
        replica_id,
        -1,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack_id,
        None,
    )
    return call, at


def _read_forgotten(
    buffer: Buffer,
    at: int,
    end: int,
    topic: str | UUID,
    forgotten: list[tuple[str | UUID, int]],
    *,
    is_flexible: bool,
) -> int:
    count, at = (read_compact_count if is_flexible else read_count)(buffer, at, end, 4)
    if count < 0:
        raise MalformedRequest("null for forgotten partitions")
    check_items(len(forgotten) + count)
    indexes = struct.unpack_from(f">{count}i", buffer, at)
    forgotten.extend([(topic, index) for index in indexes])
    return at + 4 * count


def _parse_flexible(buffer: Buffer, at: int, version: int) -> tuple[FetchCall, int]:
    end = len(buffer)
    replica_id = -1
    if version < REPLICA_STATE_FROM:
        replica_id = INT32.unpack_from(buffer, at)[0]
        at += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _START.unpack_from(buffer, at)
    session_id, session_epoch = _SESSION.unpack_from(buffer, at + 13)
    partitions, at = _read_partitions(buffer, at + 21, end, version)
    forgotten: list[tuple[str | UUID, int]] = []
    topics, at = read_compact_count(buffer, at, end, 3)
    if topics < 0:
        raise MalformedRequest("null for forgotten topics")
    check_items(topics)
    for _ in range(topics):
        topic, at = _read_topic(buffer, at, end, version)
        at = _read_forgotten(buffer, at, end, topic, forgotten, is_flexible=True)
        at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1
    rack_id, at = read_compact_text(buffer, at, end)
    replica_epoch, cluster_id = -1, None
    if buffer[at]:
        replica_id, replica_epoch, cluster_id, at = _read_request_tags(
            buffer, at, end, version, replica_id
        )
    else:
        at += 1
    call = FetchCall(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        partitions,
        forgotten,
        rack_id,
        cluster_id,
    )
    return call, at


def _read_partitions(
    buffer: Buffer, at: int, end: int, version: int
) -> tuple[list[FetchPartition], int]:
    topics, at = read_compact_count(buffer, at, end, 3)
    if topics < 0:
        raise MalformedRequest("null for topics")
    check_items(topics)
    partitions: list[FetchPartition] = []
    for _ in range(topics):
        topic, at = _read_topic(buffer, at, end, version)
        count, at = read_compact_count(buffer, at, end, 33)
        if count < 0:
            raise MalformedRequest("null for partitions")
        check_items(len(partitions) + count)
        for _ in range(count):
            index, epoch, offset, last_epoch, start_offset, size = _PARTITION_12.unpack_from(
                buffer, at
            )
            at += 32
            directory_id, high_watermark = None, OFFSET_MAX
            if buffer[at]:
                directory_id, high_watermark, at = _read_partition_tags(buffer, at, end, version)
            else:
                at += 1
            partitions.append(
                FetchPartition(
                    topic,
                    index,
                    offset,
                    size,
                    epoch,
                    last_epoch,
                    start_offset,
                    directory_id,
                    high_watermark,
                )
            )
        at = skip_tagged_fields(buffer, at, end) if buffer[at] else at + 1
    return partitions, at


def _read_topic(buffer: Buffer, at: int, end: int, version: int) -> tuple[str | UUID, int]:
    if version >= TOPIC_IDS_FROM:
        return read_topic_id(buffer, at)
    return read_compact_text(buffer, at, end)


def _read_partition_tags(
    buffer: Buffer, at: int, end: int, version: int
) -> tuple[UUID | None, int, int]:
    directory_id, high_watermark = None, OFFSET_MAX
    tags, at = read_tag_count(buffer, at)
    for _ in range(tags):
        tag, at = read_varint(buffer, at)
        size, at = read_varint(buffer, at)
        if at + size > end:
            raise MalformedRequest("tagged field beyond the end")
        if tag == 0 and version >= 17:
            _check_size("directory id", size, 16)
            raw = bytes(buffer[at : at + 16])
            directory_id = UUID(bytes=raw) if any(raw) else None
        elif tag == 1 and version >= 18:
            _check_size("high watermark", size, 8)
            high_watermark = _INT64.unpack_from(buffer, at)[0]
        at += size
    return directory_id, high_watermark, at


def _read_request_tags(
    buffer: Buffer, at: int, end: int, version: int, replica_id: int
) -> tuple[int, int, str | None, int]:
    replica_epoch, cluster_id = -1, None
    tags, at = read_tag_count(buffer, at)
    for _ in range(tags):
        tag, at = read_varint(buffer, at)
        size, at = read_varint(buffer, at)
        stop = at + size
        if stop > end:
            raise MalformedRequest("tagged field beyond the end")
        if tag == 0:
            cluster_id, at = read_compact_text_or_null(buffer, at, end)
            _check_size("cluster id", size, size + at - stop)
        elif tag == 1 and version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(buffer, at)
            at = skip_tagged_fields(buffer, at + 12, end)
            _check_size("replica state", size, size + at - stop)
        at = stop
    return replica_id, replica_epoch, cluster_id, at


def _check_size(what: str, declared: int, actual: int) -> None:
    if declared != actual:
        raise MalformedRequest(f"wrong size of {what}")


def encode_fetch_response(
    version: int,
    results: Sequence[FetchResult],
    *,
    error_code: int = ErrorCode.NONE,
    session_id: int = 0,
    throttle_ms: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Buffer]:
    """The body of the response. Large records are buffers of their own, not copies."""
    out = bytearray(INT32.pack(throttle_ms))
    if version >= 7:
        out += struct.pack(">hi", error_code, session_id)
    groups: list[tuple[str | UUID, list[FetchResult]]] = []
    for result in results:
        if groups and groups[-1][0] == result.topic:
            groups[-1][1].append(result)
        else:
            groups.append((result.topic, [result]))
    buffers: list[Buffer] = []
    if version >= FLEXIBLE_FROM:
        out = _encode_flexible(out, version, groups, buffers)
        if node_endpoints and version >= 16:
            write_node_endpoints(out, node_endpoints)
        else:
            out.append(0)
    else:
        out = _encode_plain(out, version, groups, buffers)
    if out:
        buffers.append(bytes(out))
    return buffers


def _encode_plain(
    out: bytearray,
    version: int,
    groups: list[tuple[str | UUID, list[FetchResult]]],
    buffers: list[Buffer],
) -> bytearray:
    write_count(out, len(groups))
    for topic, results in groups:
        assert isinstance(topic, str), f"topic {topic} by id in version {version}"
        write_text(out, topic)
        write_count(out, len(results))
        for result in results:
            _write_offsets(out, version, result)
            write_count(out, -1 if result.aborted is None else len(result.aborted))
            for aborted in result.aborted or ():
                out += _ABORTED.pack(*aborted)
            if version >= 11:
                out += INT32.pack(result.preferred_read_replica)
            records = result.records
            write_count(out, -1 if records is None else len(records))
            if records is not None:
                out = _add_records(out, records, buffers)
    return out


def _write_offsets(out: bytearray, version: int, result: FetchResult) -> None:
    if version >= 5:
        out += _RESULT_5.pack(
            result.partition,
            result.error_code,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start_offset,
        )
    else:
        out += _RESULT_4.pack(
            result.partition, result.error_code, result.high_watermark, result.last_stable_offset
        )


def _encode_flexible(
    out: bytearray,
    version: int,
    groups: list[tuple[str | UUID, list[FetchResult]]],
    buffers: list[Buffer],
) -> bytearray:
    write_compact_count(out, len(groups))
    for topic, results in groups:
        if isinstance(topic, str):
            assert version < TOPIC_IDS_FROM, f"topic {topic} by name in version {version}"
            write_compact_text(out, topic)
        else:
            assert version >= TOPIC_IDS_FROM, f"topic {topic} by id in version {version}"
            out += topic.bytes
        write_compact_count(out, len(results))
        for result in results:
            _write_offsets(out, version, result)
            write_compact_count(out, -1 if result.aborted is None else len(result.aborted))
            for aborted in result.aborted or ():
                out += _ABORTED.pack(*aborted)
                out.append(0)
            out += INT32.pack(result.preferred_read_replica)
            records = result.records
            write_varint(out, 0 if records is None else len(records) + 1)
            if records is not None:
                out = _add_records(out, records, buffers)
            if result.diverging is None and result.leader is None and result.snapshot is None:
                out.append(0)
            else:
                _write_result_tags(out, result)
        out.append(0)
    return out


def _add_records(out: bytearray, records: Buffer, buffers: list[Buffer]) -> bytearray:
    if len(records) < OWN_BUFFER_BYTES_MIN:
        out += records
        return out
    buffers.append(bytes(out))
    buffers.append(records)
    return bytearray()


def _write_result_tags(out: bytearray, result: FetchResult) -> None:
    tags, count = bytearray(), 0
    if result.diverging is not None and result.diverging != (-1, -1):
        tags += struct.pack(">bbiqb", 0, 13, *result.diverging, 0)
        count += 1
    if result.leader is not None and result.leader != (-1, -1):
        tags += struct.pack(">bbiib", 1, 9, *result.leader, 0)
        count += 1
    if result.snapshot is not None and result.snapshot != (-1, -1):
        tags += struct.pack(">bbqib", 2, 13, *result.snapshot, 0)
        count += 1
    out.append(count)
    out += tags
