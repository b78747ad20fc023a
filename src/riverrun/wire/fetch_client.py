"""A hand-written codec for Fetch, versions 15 to 18, as followers use it.

This is the other side of ``wire/fetch.py``. Records of a response are views of its frame, so they
are not copied between socket buffer and log file. Property tests compare this codec with the
generated one. Versions below 15 lack the follower's broker epoch, which the leader needs (KIP-903).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from riverrun.wire.apis import ApiKey
from riverrun.wire.fetch import FetchPartition, FetchResult
from riverrun.wire.primitives import (
    Buffer,
    MalformedRequest,
    read_compact_count,
    read_compact_text,
    read_compact_text_or_null,
    read_tag_count,
    read_varint,
    skip_tagged_fields,
    write_compact_count,
    write_compact_text_or_null,
    write_text,
    write_varint,
)
from riverrun.wire.produce import NodeEndpoint, read_topic_id

VERSION_MIN = 15
VERSION_MAX = 18

_HEADER = struct.Struct(">ihhi")
_START = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqib")
_REPLICA_STATE = struct.Struct(">iqb")
_REPLICA_STATE_TAG = b"\x01\x0d"
_INT32 = struct.Struct(">i")
_RESPONSE_START = struct.Struct(">ihi")
_RESULT = struct.Struct(">ihqqq")
_ABORTED_BYTES = 17
_ABORTED = struct.Struct(">qqb")
_EPOCH_END = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_SNAPSHOT = struct.Struct(">qi")
_READ_UNCOMMITTED = 0
_NO_RACK = b"\x01"
_ONE_TOPIC = _ONE_PARTITION = b"\x02"


class FollowerFetchRequest(NamedTuple):
    """A request without its partitions."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int


class FollowerFetchResponse(NamedTuple):
    """A response. The records of ``results`` are views of its frame."""

    throttle_ms: int
    error_code: int
    session_id: int
    results: list[FetchResult]
    node_endpoints: list[NodeEndpoint]


class FetchEncoder:
    """Encodes requests of one client in one version. Most of their bytes never change."""

    __slots__ = ("_end", "_end_with_cluster", "_head", "_replica", "version")

    def __init__(self, version: int, client_id: str, cluster_id: str | None = None) -> None:
        assert VERSION_MIN <= version <= VERSION_MAX, f"followers do not use fetch v{version}"
        self.version = version
        head = bytearray()
        write_text(head, client_id)
        head.append(0)
        self._head = bytes(head)
        self._end = _NO_RACK + b"\x01" + _REPLICA_STATE_TAG
        end = bytearray(self._end)
        if cluster_id is not None:
            text = bytearray()
            write_compact_text_or_null(text, cluster_id)
            end = bytearray(_NO_RACK + b"\x02\x00")
            write_varint(end, len(text))
            end += text + _REPLICA_STATE_TAG
        self._end_with_cluster = bytes(end)

    def encode(
        self,
        correlation_id: int,
        request: FollowerFetchRequest,
        partitions: Sequence[FetchPartition],
        forgotten: Sequence[tuple[UUID, int]] = (),
    ) -> bytes:
        """A request frame, including its length field. Adjacent partitions of a topic are grouped.

        Only the first request of a session contains the cluster id.
        """
        replica_id, replica_epoch, wait_ms, min_bytes, max_bytes, session_id, epoch = request
        body = bytearray(self._head)
        body += _START.pack(wait_ms, min_bytes, max_bytes, _READ_UNCOMMITTED, session_id, epoch)
        if len(partitions) == 1:  # the common case
            p = partitions[0]
            body += _ONE_TOPIC
            body += p.topic.bytes  # type: ignore[union-attr]
            body += _ONE_PARTITION
            body += _PARTITION.pack(p[1], p[4], p[2], p[5], p[6], p[3], 0)
            body.append(0)
        else:
            _write_topics(body, partitions)
        if forgotten:
            _write_forgotten(body, forgotten)
        else:
            body.append(1)
        body += self._end if epoch else self._end_with_cluster
        body += _REPLICA_STATE.pack(replica_id, replica_epoch, 0)
        head = _HEADER.pack(len(body) + 8, ApiKey.FETCH, self.version, correlation_id)
        return head + body


def _write_topics(out: bytearray, partitions: Sequence[FetchPartition]) -> None:
    groups: list[list[FetchPartition]] = []
    for partition in partitions:
        if groups and groups[-1][0].topic == partition.topic:
            groups[-1].append(partition)
        else:
            groups.append([partition])
    write_compact_count(out, len(groups))
    for group in groups:
        topic = group[0].topic
        assert isinstance(topic, UUID), f"topic {topic} by name"
        out += topic.bytes
        write_compact_count(out, len(group))
        for p in group:
            out += _PARTITION.pack(p[1], p[4], p[2], p[5], p[6], p[3], 0)
        out.append(0)


def _write_forgotten(out: bytearray, forgotten: Sequence[tuple[UUID, int]]) -> None:
    by_topic: dict[UUID, list[int]] = {}
    for topic, index in forgotten:
        by_topic.setdefault(topic, []).append(index)
    write_compact_count(out, len(by_topic))
    for topic, indexes in by_topic.items():
        out += topic.bytes
        write_compact_count(out, len(indexes))
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)


def parse_fetch_response(frame: memoryview, at: int, version: int) -> FollowerFetchResponse:
    """Parse the response between ``at`` and the end of the frame; raises ``MalformedRequest``."""
    try:
        response, stop = _parse(frame, at, version)
        if stop != len(frame):
            raise MalformedRequest(f"{len(frame) - stop} bytes too many")
    except (MalformedRequest, struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"fetch v{version} response: {error}") from error
    return response


def _parse(frame: memoryview, at: int, version: int) -> tuple[FollowerFetchResponse, int]:
    end = len(frame)
    throttle_ms, error_code, session_id = _RESPONSE_START.unpack_from(frame, at)
    topics, at = read_compact_count(frame, at + 10, end, 18)
    if topics < 0:
        raise MalformedRequest("null for topics")
    results: list[FetchResult] = []
    for _ in range(topics):
        topic, at = read_topic_id(frame, at)
        count, at = read_compact_count(frame, at, end, 37)
        if count < 0:
            raise MalformedRequest("null for partitions")
        for _ in range(count):
            at = _read_result(frame, at, end, topic, results)
        at = skip_tagged_fields(frame, at, end) if frame[at] else at + 1
    endpoints: list[NodeEndpoint] = []
    if frame[at]:
        at = _read_response_tags(frame, at, end, version, endpoints)
    else:
        at += 1
    return FollowerFetchResponse(throttle_ms, error_code, session_id, results, endpoints), at


def _read_result(
    frame: memoryview, at: int, end: int, topic: UUID, results: list[FetchResult]
) -> int:
    index, error_code, high_watermark, stable, start = _RESULT.unpack_from(frame, at)
    aborted: list[tuple[int, int]] | None = None
    at += 30
    if frame[at]:
        count, at = read_compact_count(frame, at, end, _ABORTED_BYTES)
        aborted = []
        for _ in range(count):
            producer_id, first_offset, tags = _ABORTED.unpack_from(frame, at)
            aborted.append((producer_id, first_offset))
            at = skip_tagged_fields(frame, at + 16, end) if tags else at + _ABORTED_BYTES
    else:
        at += 1
    preferred: int = _INT32.unpack_from(frame, at)[0]
    size, at = read_varint(frame, at + 4)
    records: Buffer | None = None
    if size:
        stop = at + size - 1
        if stop > end:
            raise MalformedRequest(f"records of {size - 1} bytes with {end - at} left")
        records, at = frame[at:stop], stop
    diverging = leader = snapshot = None
    if frame[at]:
        diverging, leader, snapshot, at = _read_result_tags(frame, at, end)
    else:
        at += 1
    results.append(
        FetchResult(
            topic,
            index,
            error_code,
            high_watermark,
            stable,
            start,
            aborted,
            records,
            preferred,
            diverging,
            leader,
            snapshot,
        )
    )
    return at


_Pair = tuple[int, int] | None


def _read_result_tags(frame: memoryview, at: int, end: int) -> tuple[_Pair, _Pair, _Pair, int]:
    found: list[_Pair] = [None, None, None]
    layouts = (_EPOCH_END, _LEADER, _SNAPSHOT)
    tags, at = read_tag_count(frame, at)
    for _ in range(tags):
        tag, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        stop = at + size
        if stop > end:
            raise MalformedRequest("tagged field beyond the end")
        if tag < len(layouts):
            layout = layouts[tag]
            first, second = layout.unpack_from(frame, at)
            if skip_tagged_fields(frame, at + layout.size, end) != stop:
                raise MalformedRequest(f"wrong size of tagged field {tag}")
            found[tag] = (first, second)
        at = stop
    return found[0], found[1], found[2], at


def _read_response_tags(
    frame: memoryview, at: int, end: int, version: int, endpoints: list[NodeEndpoint]
) -> int:
    tags, at = read_tag_count(frame, at)
    for _ in range(tags):
        tag, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        stop = at + size
        if stop > end:
            raise MalformedRequest("tagged field beyond the end")
        if tag == 0 and version >= 16 and _read_endpoints(frame, at, end, endpoints) != stop:
            raise MalformedRequest("wrong size of node endpoints")
        at = stop
    return at


def _read_endpoints(frame: memoryview, at: int, end: int, endpoints: list[NodeEndpoint]) -> int:
    count, at = read_compact_count(frame, at, end, 11)
    if count < 0:
        raise MalformedRequest("null for node endpoints")
    for _ in range(count):
        node_id: int = _INT32.unpack_from(frame, at)[0]
        host, at = read_compact_text(frame, at + 4, end)
        port: int = _INT32.unpack_from(frame, at)[0]
        rack, at = read_compact_text_or_null(frame, at + 4, end)
        at = skip_tagged_fields(frame, at, end)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return at
