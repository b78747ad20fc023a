"""The group coordinator of a node: all partitions of ``__consumer_offsets`` that it leads.

The server reports leadership changes (``elect``, ``resign``) and passes the requests of groups. A
group belongs to the partition that its id hashes to, and each led partition has a ``ShardRunner``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import structlog

from riverrun.coordinator.deadline_timer import DeadlineTimer
from riverrun.coordinator.hashing import partition_of
from riverrun.coordinator.log import CoordinatorLog
from riverrun.coordinator.metrics import GroupMetrics
from riverrun.coordinator.offsets import CommittedPartition
from riverrun.coordinator.records import TEXT_BYTES_MAX
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.shard import described_error
from riverrun.coordinator.shard_runner import (
    GROUPS_PER_TURN,
    ShardContext,
    ShardRunner,
    ShardStatus,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.ports.aio import OwnedTasks, Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Caller
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

log = structlog.get_logger("riverrun.groups")


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
    ) -> None:
        """``partitions`` returns the partition count that the topic has or will get. ``failed``
        gets exceptions that can only be our bug; the node must stop then."""
        self._settings = settings
        self._clock = clock
        self._partitions = partitions
        self._runners: dict[PartitionIndex, ShardRunner] = {}
        self.metrics = GroupMetrics(metrics, groups=self._count_groups, offsets=self._count_offsets)
        self._timer = DeadlineTimer(clock, on_due=self._expire, on_stall=self._credit)
        self._tasks = OwnedTasks(lambda _, error: failed(error))
        self._context = ShardContext(
            settings=settings,
            clock=clock,
            randomness=randomness,
            metrics=self.metrics,
            timer=self._timer,
            tasks=self._tasks,
        )

    def start(self) -> None:
        """Start the periodic expiry of offsets."""
        self._tasks.start(self._expire_offsets())

    async def stop(self) -> None:
        for index in list(self._runners):
            self.resign(index)
        self._timer.stop()
        await self._tasks.close()

    # Leadership

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None:
        """Coordinate the groups of a partition that this node leads from now on."""
        known = self._runners.get(index)
        is_loaded = known is not None and known.status is ShardStatus.ACTIVE
        if known is not None and is_loaded and held.leader_epoch <= known.log.leader_epoch + 1:
            known.log = held  # this node led the previous epoch too: no other node has written
            return
        self.resign(index)
        runner = self._runners[index] = ShardRunner(index, held, self._context)
        runner.start()

    def resign(self, index: PartitionIndex) -> None:
        """Stop coordinating the groups of a partition that this node no longer leads."""
        runner = self._runners.pop(index, None)
        if runner is not None:
            runner.resign()

    def topics_deleted(self, names: Sequence[str]) -> None:
        """Delete the committed offsets of deleted topics."""
        for runner in self._runners.values():
            if runner.status is ShardStatus.ACTIVE:
                turn = runner.turn()
                runner.shard.topics_deleted(turn, names)
                runner.finish(turn)

    def partition_of(self, group_id: str) -> PartitionIndex:
        return partition_of(group_id, self._partitions())

    def runner_of(self, group_id: str, *, is_empty_allowed: bool = False) -> ShardRunner:
        """The runner of a group. The empty id is allowed where old clients used it."""
        if (not group_id and not is_empty_allowed) or len(group_id.encode()) > TEXT_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        runner = self._runners.get(self.partition_of(group_id))
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if runner.status is not ShardStatus.ACTIVE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runner

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

    def sync_group(self, request: SyncGroupRequest) -> Awaitable[SyncGroupResponse]:
        runner = self.runner_of(request.group_id)
        return runner.submit(
            SyncGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.sync(turn, waiter, request),
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        runner = self.runner_of(request.group_id)
        return runner.shard.heartbeat(runner.turn(), request)

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
        runners = list(self._runners.values())
        if any(runner.status is not ShardStatus.ACTIVE for runner in runners):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
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
        self, group_id: str, topics: Sequence[OffsetFetchRequestTopics] | None
    ) -> OffsetFetchResponseGroup:
        return self.runner_of(group_id, is_empty_allowed=True).shard.fetch(group_id, topics)

    def fetch_stable_offsets(
        self, group_id: str, topics: Sequence[OffsetFetchRequestTopics] | None
    ) -> Awaitable[OffsetFetchResponseGroup]:
        """Like ``fetch_offsets``, but after all commits in flight are committed or refused."""
        runner = self.runner_of(group_id, is_empty_allowed=True)
        return runner.read_committed(lambda: runner.shard.fetch(group_id, topics))

    def delete_offsets(self, request: OffsetDeleteRequest) -> Awaitable[OffsetDeleteResponse]:
        runner = self.runner_of(request.group_id)
        return runner.submit(
            OffsetDeleteResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.delete_offsets(turn, waiter, request),
        )

    def committed_offsets(self) -> Iterator[CommittedPartition]:
        """The offsets of all loaded groups. No offset may be committed while this is iterated."""
        for runner in self._runners.values():
            if runner.status is ShardStatus.ACTIVE:
                yield from runner.shard.offsets

    # Time

    def _expire(self) -> None:
        for runner in self._runners.values():
            if runner.status is ShardStatus.ACTIVE:
                turn = runner.turn()
                runner.shard.expire(turn)
                runner.finish(turn)

    def _credit(self, seconds: float) -> None:
        """Postpone all deadlines by a stall of this process."""
        self.metrics.stalls.value += 1
        log.warning("event loop stalled; group deadlines extended", seconds=round(seconds, 3))
        for runner in self._runners.values():
            runner.shard.deadlines.postpone(seconds)
            runner.arm()

    async def _expire_offsets(self) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_retention_check_interval_ms / 1000)
            yielder = Yielder(self._clock)
            for runner in list(self._runners.values()):
                groups = list(runner.shard.groups)
                for start in range(0, len(groups), GROUPS_PER_TURN):
                    if runner.status is ShardStatus.ACTIVE:
                        turn = runner.turn()
                        some = groups[start : start + GROUPS_PER_TURN]
                        runner.shard.expire_offsets(turn, some)
                        runner.finish(turn)
                    await yielder.step()

    def _count_groups(self) -> int:
        return sum(len(runner.shard.groups) for runner in self._runners.values())

    def _count_offsets(self) -> int:
        return sum(runner.shard.offsets.count for runner in self._runners.values())
