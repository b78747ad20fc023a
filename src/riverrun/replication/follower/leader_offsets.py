"""Asks a leader by ListOffsets for the start and end of its logs, after a fetch was out of range.

The request carries a replica id, so the end is the log end offset and not the high watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.replication.follower.followed_partition import FollowedPartition, Key
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_response, encode_request
from riverrun.wire.headers import (
    has_flexible_response_header,
    read_response_header,
    request_frame,
)
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from riverrun.wire.messages.list_offsets_response import ListOffsetsResponse

LATEST = -1
EARLIEST_LOCAL = -4
VERSION_MIN = 8
"""The first version with the earliest local offset (KIP-405)."""
VERSION_MAX = 9


class LogRange(NamedTuple):
    start: int
    end: int


class LeaderOffsetsLookup:
    """Sends two requests, because each can name a partition only once. Call ``add_response`` after
    each of them.
    """

    def __init__(
        self,
        node_id: NodeId,
        partitions: Sequence[FollowedPartition],
        versions: Mapping[int, tuple[int, int]],
    ) -> None:
        self.found: dict[Key, LogRange | str] = {}
        self._node_id = node_id
        self._partitions = partitions
        self._version = min(versions.get(ApiKey.LIST_OFFSETS, (0, -1))[1], VERSION_MAX)
        self._timestamp = LATEST

    def requests(self, client_id: str) -> Iterator[bytes]:
        if self._version < VERSION_MIN:
            return
        api = ALL_APIS[ApiKey.LIST_OFFSETS]
        for timestamp in (LATEST, EARLIEST_LOCAL):
            self._timestamp = timestamp
            body = encode_request(api.key, self._version, self._message(timestamp))
            yield request_frame(api, self._version, 0, client_id, body)

    def _message(self, timestamp: int) -> ListOffsetsRequest:
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for following in self._partitions:
            name = following.partition.name
            by_topic.setdefault(name.topic, []).append(
                ListOffsetsPartition(
                    partition_index=name.partition,
                    current_leader_epoch=following.leader_epoch,
                    timestamp=timestamp,
                )
            )
        topics = [
            ListOffsetsTopic(name=topic, partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ]
        return ListOffsetsRequest(replica_id=self._node_id, isolation_level=0, topics=tuple(topics))

    def add_response(self, frame: bytes) -> None:
        """Raises ``MalformedRequest``."""
        api = ALL_APIS[ApiKey.LIST_OFFSETS]
        is_flexible = has_flexible_response_header(api, self._version)
        _, at = read_response_header(frame, is_flexible=is_flexible)
        response: ListOffsetsResponse = decode_response(api.key, self._version, frame, at)
        keys = {
            (f.partition.name.topic, f.partition.name.partition): f.key for f in self._partitions
        }
        for topic in response.topics:
            for partition in topic.partitions:
                key = keys.get((topic.name, partition.partition_index))  # type: ignore[arg-type]
                if key is None:
                    continue
                if partition.error_code is not ErrorCode.NONE or partition.offset < 0:
                    self.found[key] = partition.error_code.name
                elif self._timestamp == LATEST:
                    self.found[key] = LogRange(-1, partition.offset)
                else:
                    end = self.found.get(key)
                    if isinstance(end, LogRange):
                        self.found[key] = LogRange(partition.offset, end.end)
