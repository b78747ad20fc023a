"""A member of a group of the consumer protocol (KIP-848): heartbeats, commits and positions.

The coordinator assigns. ``beat`` reports the partitions in ``owned`` and learns those in
``assigned``. Between two heartbeats the application takes partitions that were added, and gives up
those that were removed, by changing ``owned``. A partition is free for other members when a
heartbeat without it has been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from riverrun.client.offsets import BY_NAME_COMMIT_MAX, commit_offsets
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.consumer_group_heartbeat_request import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)
from riverrun.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from riverrun.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

Slot = tuple[UUID, int]
"""A partition: topic id and index."""

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
RETURN_EPOCH: Final = -2
"""A static member leaves and will return."""
REBALANCE_TIMEOUT_MS: Final = 60_000
FENCED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
"""The member has lost all partitions and must join again."""


class HeartbeatMember:
    """The caller sends heartbeats at the interval of the response. The pool is not shared."""

    def __init__(
        self,
        pool: ConnectionPool,
        group: str,
        member_id: str,
        topics: Sequence[str],
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS,
        sending: Callable[[], None] = lambda: None,
    ) -> None:
        """``sending`` is called before each attempt of a heartbeat."""
        self._pool = pool
        self._group = group
        self._topics = tuple(topics)
        self._regex = regex
        self._instance_id = instance_id
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._sending = sending
        self._known: ConsumerGroupHeartbeatRequest | None = None
        """The last request that the coordinator answered; None if all fields must be sent."""
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self.interval_s = 0.0
        self.assigned: dict[Slot, None] = {}
        self.owned: dict[Slot, None] = {}
        self.doubts = 0
        """Attempts since the last response. Each of them may have reached the coordinator."""

    @property
    def revoked(self) -> list[Slot]:
        """Partitions that the application has to give up."""
        return [slot for slot in self.owned if slot not in self.assigned]

    def subscribe(self, topics: Sequence[str]) -> None:
        """Subscribe to other topics, with the next heartbeat."""
        self._topics = tuple(topics)

    async def beat(self) -> None:
        """Join, or stay in the group. Raises KafkaError or OSError.

        After an error in ``FENCED`` the member owns nothing and joins with the next call.
        """
        response = await self._pool.try_again(self._beat_once, group=self._group)
        code = response.error_code
        if code in FENCED:
            self.epoch, self.assigned, self.owned, self._known = JOIN_EPOCH, {}, {}, None
        if code is not ErrorCode.NONE:
            raise KafkaError(code, response.error_message)
        self.doubts = 0
        self.epoch = response.member_epoch
        self.member_id = response.member_id or self.member_id
        self.interval_s = response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            self.assigned = {
                (topic.topic_id, index): None
                for topic in response.assignment.topic_partitions
                if topic.topic_id is not None
                for index in topic.partitions
            }

    async def leave(self, *, will_return: bool = False) -> None:
        """Leave the group, or be away for a moment as a static member."""
        self.assigned, self.owned = {}, {}
        message = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=RETURN_EPOCH if will_return else LEAVE_EPOCH,
            instance_id=self._instance_id,
            topic_partitions=None,
        )
        response: ConsumerGroupHeartbeatResponse = await self._pool.group_request(
            self._group,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            message,
            lambda response: response.error_code,
        )
        if response.error_code not in (ErrorCode.NONE, *FENCED):
            raise KafkaError(response.error_code, response.error_message)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raises KafkaError, STALE_MEMBER_EPOCH if another member may have the partitions."""
        await commit_offsets(
            self._pool,
            self._group,
            offsets,
            generation=self.epoch,
            member_id=self.member_id,
        )

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The committed offsets of partitions that have one.

        The request has the member's epoch, so a former coordinator refuses it: its offsets may be
        old. Raises KafkaError, also STALE_MEMBER_EPOCH.
        """
        named: dict[str, list[int]] = {}
        for at in partitions:
            named.setdefault(at.topic, []).append(at.partition)
        topics = tuple(
            OffsetFetchRequestTopics(name=name, partition_indexes=tuple(indexes))
            for name, indexes in named.items()
        )
        group = OffsetFetchRequestGroup(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topics=topics,
        )
        message = OffsetFetchRequest(
            group_id=self._group, topics=None, groups=(group,), require_stable=True
        )
        found: OffsetFetchResponseGroup = await self._pool.try_again(
            lambda: self._fetch_once(message), group=self._group
        )
        return {
            TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): (
                row.committed_offset
            )
            for topic in found.topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }

    async def _fetch_once(self, message: OffsetFetchRequest) -> OffsetFetchResponseGroup:
        connection = await self._pool.node_connection(await self._pool.coordinator(self._group))
        version = connection.version_of(ApiKey.OFFSET_FETCH, at_most=BY_NAME_COMMIT_MAX)
        response: OffsetFetchResponse = await connection.request(
            ApiKey.OFFSET_FETCH, message, version=version
        )
        found = response.groups[0]
        codes = [row.error_code for topic in found.topics for row in topic.partitions]
        for code in (found.error_code, *codes):
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"offsets of group {self._group}: {code.name}")
        return found

    async def _beat_once(self) -> ConsumerGroupHeartbeatResponse:
        full = self._request()
        known, self._known = self._known, None
        message = full if known is None else _without_known(full, known)
        self._sending()
        self.doubts += 1
        node = await self._pool.coordinator(self._group)
        response: ConsumerGroupHeartbeatResponse = await self._pool.request_node(
            node, ApiKey.CONSUMER_GROUP_HEARTBEAT, message
        )
        if response.error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.doubts -= 1
        if response.error_code in RETRIABLE:
            raise KafkaError(response.error_code, response.error_message)
        self._known = full
        return response

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        """The request with all fields."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._instance_id,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            subscribed_topic_names=self._topics,
            subscribed_topic_regex=self._regex,
            topic_partitions=_listed(self.owned),
        )


def _without_known(
    full: ConsumerGroupHeartbeatRequest, known: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatRequest:
    """Null fields have not changed since the last request that was answered."""
    has_new_topics = full.subscribed_topic_names != known.subscribed_topic_names
    has_new_list = full.topic_partitions != known.topic_partitions
    return ConsumerGroupHeartbeatRequest(
        group_id=full.group_id,
        member_id=full.member_id,
        member_epoch=full.member_epoch,
        instance_id=full.instance_id,
        subscribed_topic_names=full.subscribed_topic_names if has_new_topics else None,
        topic_partitions=full.topic_partitions if has_new_list else None,
    )


def _listed(slots: Iterable[Slot]) -> tuple[TopicPartitions, ...]:
    topics: dict[UUID, list[int]] = {}
    for topic_id, index in slots:
        topics.setdefault(topic_id, []).append(index)
    return tuple(
        TopicPartitions(topic_id=topic_id, partitions=tuple(sorted(indexes)))
        for topic_id, indexes in sorted(topics.items())
    )
