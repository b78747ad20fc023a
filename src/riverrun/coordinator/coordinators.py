"""The group coordinator of a node: all partitions of ``__consumer_offsets`` that it leads.

The server reports leadership changes (``elect``, ``resign``) and passes the requests of groups. A
group belongs to the partition that its id hashes to, and each led partition has a ``ShardRunner``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from riverrun.coordinator.consumer.catalog import EmptyCatalog
from riverrun.coordinator.consumer.heartbeat import LEAVE_EPOCH, check_heartbeat
from riverrun.coordinator.consumer.records import ConsumerEpochRecord
from riverrun.coordinator.consumer.regexes import TopicMatcher, TopicMatches, regexes_to_match
from riverrun.coordinator.groups.description import consumer_error, described_error
from riverrun.coordinator.groups.offset_requests import NO_MEMBER
from riverrun.coordinator.hashing import partition_of
from riverrun.coordinator.led_shards import LedShards
from riverrun.coordinator.log import CoordinatorLog
from riverrun.coordinator.metrics import ConsumerMetrics, ShardMetrics, declare_group_gauges
from riverrun.coordinator.offsets import CommittedPartition
from riverrun.coordinator.records import TEXT_BYTES_MAX, decode, encode
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.shard import GroupShard
from riverrun.coordinator.shard_kind import ShardKind, ShardLimits, Waiter
from riverrun.coordinator.shard_runner import ShardRunner
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.model.invariants import state_change
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.consumer_group_heartbeat_response import (
    ConsumerGroupHeartbeatResponse,
)
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
from riverrun.wire.messages.sync_group_response import SyncGroupResponse
from riverrun.wire.messages.txn_offset_commit_response import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from riverrun.coordinator.consumer.catalog import GroupCatalog
    from riverrun.coordinator.consumer.regexes import Visible
    from riverrun.coordinator.log import ProducerTransaction
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.storage.markers import NewMarker
    from riverrun.wire.messages import consumer_group_describe_response
    from riverrun.wire.messages.consumer_group_heartbeat_request import (
        ConsumerGroupHeartbeatRequest,
    )
    from riverrun.wire.messages.describe_groups_response import DescribedGroup
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
    from riverrun.wire.messages.join_group_request import JoinGroupRequest
    from riverrun.wire.messages.leave_group_request import LeaveGroupRequest
    from riverrun.wire.messages.list_groups_response import ListedGroup
    from riverrun.wire.messages.offset_commit_request import OffsetCommitRequest
    from riverrun.wire.messages.offset_delete_request import OffsetDeleteRequest
    from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
    from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup
    from riverrun.wire.messages.sync_group_request import SyncGroupRequest
    from riverrun.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest

UNSTABLE_SECONDS_MAX: Final = 0.5
"""For a transaction to end, before a reader of stable offsets gets an error."""


class GroupClient(NamedTuple):
    """The client of a member."""

    group_id: str
    client_id: str
    client_host: str


class GroupCoordinators:
    """Coordinates the groups of all led partitions."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        partitions: Callable[[], int],
        failed: Callable[[BaseException], None],
        view: GroupCatalog | None = None,
    ) -> None:
        """``partitions`` returns the partition count that the topic has or will get. ``failed``
        gets exceptions that can only be our bug; the node must stop then. ``view`` shows the
        topics and the settings of groups."""
        self._settings = settings
        self._partitions = partitions
        self._clock = clock
        self._view = view or EmptyCatalog()
        self._matching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Groups whose regular expressions are matched now."""
        kind = ShardKind(
            name="group",
            subject="group",
            limits=ShardLimits(
                batch_bytes_max=settings.batch_bytes_max,
                queue_records_max=settings.queue_records_max,
                append_timeout_ms=settings.offsets_commit_timeout_ms,
            ),
            new_shard=lambda: GroupShard(settings, randomness, view),
            encode=encode,
            decode=decode,
        )
        self.metrics = ShardMetrics(metrics, name="group", topic=OFFSETS_TOPIC)
        self._consumer_metrics = ConsumerMetrics(metrics, groups=self._count_consumer_groups)
        self._shards = LedShards(
            kind,
            clock=clock,
            metrics=self.metrics,
            failed=failed,
            carry_out=self._count_rebalances,
        )
        declare_group_gauges(metrics, groups=self._count_groups, offsets=self._count_offsets)

    def start(self) -> None:
        """Start the periodic expiry of offsets."""
        self._shards.start(
            self._shards.sweep(
                self._settings.offsets_retention_check_interval_ms,
                GroupShard.group_ids,
                GroupShard.expire_offsets,
            )
        )

    async def stop(self) -> None:
        await self._shards.stop()

    # Leadership

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None:
        """Coordinate the groups of a partition that this node leads from now on."""
        self._shards.elect(index, held)

    def resign(self, index: PartitionIndex) -> None:
        """Stop coordinating the groups of a partition that this node no longer leads."""
        self._shards.resign(index)

    def topics_deleted(self, names: Sequence[str]) -> None:
        """Delete the committed offsets of deleted topics."""
        for runner in self._shards.active():
            turn = runner.turn()
            runner.shard.topics_deleted(turn, names)
            runner.finish(turn)

    def topics_changed(self, names: Sequence[str]) -> None:
        """Topics were created or deleted, or got partitions: assignments may change."""
        for runner in self._shards.active():
            runner.shard.topics_changed(names)

    def partition_of(self, group_id: str) -> PartitionIndex:
        return partition_of(group_id, self._partitions())

    def runner_of(
        self, group_id: str, *, is_empty_allowed: bool = False
    ) -> ShardRunner[GroupShard]:
        """The runner of a group. The empty id is allowed where old clients used it."""
        if (not group_id and not is_empty_allowed) or len(group_id.encode()) > TEXT_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self._shards.runner_of(self.partition_of(group_id))

    # Requests of groups. Each raises KafkaError for the request as a whole.

    def join_group(self, caller: Caller, request: JoinGroupRequest) -> Awaitable[JoinGroupResponse]:
        settings = self._settings
        timeout = request.session_timeout_ms
        is_good = settings.session_timeout_min_ms <= timeout <= settings.session_timeout_max_ms
        if request.group_id and not is_good:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        runner = self.runner_of(request.group_id)
        return runner.submit(
            JoinGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.join(turn, waiter, caller, request),
        )

    async def consumer_group_heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, visible: Visible
    ) -> ConsumerGroupHeartbeatResponse:
        """``visible`` decides which topics the client may see by a regular expression."""
        check_heartbeat(request, caller.api_version, self._settings.consumer_assignors)
        if not self._regexes_to_match(request):
            return await self._heartbeat(caller, request, visible, TopicMatches())
        # One member at a time: the others share its result.
        lock = self._matching.setdefault(request.group_id, asyncio.Lock())
        async with lock:
            matcher = TopicMatcher(self._regexes_to_match(request), self._view.topic_names())
            await Yielder(self._clock).run(matcher.steps())
            submitted = self._heartbeat(caller, request, visible, matcher.matches())
        return await submitted

    def _regexes_to_match(self, request: ConsumerGroupHeartbeatRequest) -> list[str]:
        if request.member_epoch <= LEAVE_EPOCH:
            return []
        group = self.runner_of(request.group_id).shard.consumers.groups.get(request.group_id)
        interval_ms = self._settings.consumer_regex_refresh_interval_ms
        now_ms = self._clock.now_ms()
        return regexes_to_match(group, request.subscribed_topic_regex, now_ms, interval_ms)

    def _heartbeat(
        self,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        visible: Visible,
        matches: TopicMatches,
    ) -> Awaitable[ConsumerGroupHeartbeatResponse]:
        runner = self.runner_of(request.group_id)

        def change(turn: Turn, waiter: Waiter) -> None:
            turn.matches = matches
            runner.shard.consumer_heartbeat(turn, waiter, caller, request, visible)

        return runner.submit(ConsumerGroupHeartbeatResponse, request.group_id, change)

    def describe_consumer_group(
        self, group_id: str
    ) -> consumer_group_describe_response.DescribedGroup:
        try:
            runner = self.runner_of(group_id)
        except KafkaError as error:
            return consumer_error(group_id, error.code, error.message)
        return runner.shard.describe_consumers(group_id)

    def sync_group(self, request: SyncGroupRequest) -> Awaitable[SyncGroupResponse]:
        runner = self.runner_of(request.group_id)
        return runner.submit(
            SyncGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.sync(turn, waiter, request),
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        runner = self.runner_of(request.group_id)
        turn = runner.turn()
        with state_change:
            response = runner.shard.heartbeat(turn, request)
            if turn.records:
                # The response does not depend on them: a repeated heartbeat emits them again.
                runner.finish(turn)
        return response

    def leave_group(self, request: LeaveGroupRequest) -> Awaitable[LeaveGroupResponse]:
        runner = self.runner_of(request.group_id)
        return runner.submit(
            LeaveGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.leave(turn, waiter, request),
        )

    def describe_group(self, group_id: str, api_version: int) -> DescribedGroup:
        try:
            runner = self.runner_of(group_id, is_empty_allowed=True)
        except KafkaError as error:
            return described_error(group_id, error.code)
        return runner.shard.describe(group_id, api_version)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        """All groups on this node, if every led partition is loaded."""
        runners = self._shards.all_loaded()
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(kind.lower() for kind in types)
        found: list[ListedGroup] = []
        for runner in runners:
            found += runner.shard.listed(wanted_states, wanted_types)
        return found

    def delete_group(self, group_id: str) -> Awaitable[DeletableGroupResult]:
        runner = self.runner_of(group_id, is_empty_allowed=True)
        return runner.submit(
            DeletableGroupResult,
            group_id,
            lambda turn, waiter: runner.shard.delete_group(turn, waiter, group_id),
        )

    # Requests for offsets

    def commit_offsets(
        self, caller: Caller, request: OffsetCommitRequest
    ) -> Awaitable[OffsetCommitResponse]:
        runner = self.runner_of(request.group_id, is_empty_allowed=True)
        return runner.submit(
            OffsetCommitResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.commit(turn, waiter, caller, request),
        )

    def fetch_offsets(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> OffsetFetchResponseGroup:
        shard = self.runner_of(group_id, is_empty_allowed=True).shard
        return shard.fetch(group_id, topics, member=member)

    async def fetch_stable_offsets(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> OffsetFetchResponseGroup:
        """Like ``fetch_offsets``, but after all commits in flight are committed or refused.

        Waits a short time for transactions that may change the offsets, which is faster than the
        back-off of clients. Then their partitions have the error UNSTABLE_OFFSET_COMMIT.
        """
        runner = self.runner_of(group_id, is_empty_allowed=True)
        shard = runner.shard
        try:
            async with asyncio.timeout(UNSTABLE_SECONDS_MAX):
                while True:
                    found = await runner.read_committed(
                        lambda: shard.fetch(group_id, topics, is_stable_only=True, member=member)
                    )
                    if runner.shard is not shard or not _has_unstable(found):
                        return found
                    await runner.submit(type(None), group_id, shard.await_transaction)
        except TimeoutError:
            return shard.fetch(group_id, topics, is_stable_only=True, member=member)

    def commit_offsets_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        transaction: ProducerTransaction,
        *,
        connection: int | None = None,
    ) -> Awaitable[TxnOffsetCommitResponse]:
        """``connection`` is that of a client of transaction version 1."""
        runner = self.runner_of(request.group_id)
        return runner.submit(
            TxnOffsetCommitResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.commit_in_transaction(
                turn, waiter, request, transaction, connection
            ),
        )

    async def end_transaction(self, index: PartitionIndex, marker: NewMarker) -> None:
        """Append a marker to a partition. Returns when the groups show its effect."""
        runner = self._shards.runner_of(index)
        await runner.submit(
            type(None),
            "",
            lambda turn, waiter: runner.shard.end_transaction(turn, waiter, marker),
        )

    def delete_offsets(self, request: OffsetDeleteRequest) -> Awaitable[OffsetDeleteResponse]:
        runner = self.runner_of(request.group_id)
        return runner.submit(
            OffsetDeleteResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.delete_offsets(turn, waiter, request),
        )

    def committed_offsets(self) -> Iterator[CommittedPartition]:
        """The offsets of all loaded groups. No offset may be committed while this is iterated."""
        for runner in self._shards.active():
            yield from runner.shard.offsets

    def loaded_clients(self) -> Iterator[GroupClient]:
        """Members of loaded partitions' groups. None may change while this is iterated."""
        for runner in self._shards.active():
            for classic in runner.shard.groups.values():
                for member in classic.members.values():
                    yield GroupClient(classic.group_id, member.client_id, member.client_host)
            for group in runner.shard.consumers.groups.values():
                for one in group.members.values():
                    yield GroupClient(
                        group.group_id, one.details.client_id, one.details.client_host
                    )

    def loaded_groups(self) -> Iterator[tuple[str, int]]:
        """Groups of loaded partitions and the number of their members. None may change while this
        is iterated."""
        for runner in self._shards.active():
            for classic in runner.shard.groups.values():
                yield classic.group_id, len(classic.members)
            for group in runner.shard.consumers.groups.values():
                yield group.group_id, len(group.members)

    # Metrics

    def _count_groups(self) -> int:
        return sum(len(runner.shard.group_ids()) for runner in self._shards.runners.values())

    def _count_consumer_groups(self) -> dict[str, int]:
        """Groups of the consumer protocol by state."""
        counts: dict[str, int] = {}
        for runner in self._shards.runners.values():
            for group in runner.shard.consumers.groups.values():
                counts[group.state.value] = counts.get(group.state.value, 0) + 1
        return counts

    def _count_rebalances(self, _runner: ShardRunner[GroupShard], turn: Turn) -> None:
        for record in turn.records:
            if isinstance(record, ConsumerEpochRecord) and record.value is not None:
                self._consumer_metrics.rebalances.value += 1

    def _count_offsets(self) -> int:
        return sum(runner.shard.offsets.count for runner in self._shards.runners.values())


def _has_unstable(found: OffsetFetchResponseGroup) -> bool:
    return any(
        partition.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        for topic in found.topics
        for partition in topic.partitions
    )
