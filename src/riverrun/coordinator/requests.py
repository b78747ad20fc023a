"""The requests that groups are made of, each sent to the partition that coordinates its group.

Nothing waits here: a request that has to gives an awaitable. All raise ``KafkaError`` for the whole
request, or give its response.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING

from riverrun.coordinator.shard import described_error
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_delete_response import OffsetDeleteResponse
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

if TYPE_CHECKING:
    from riverrun.coordinator.coordinators import ShardRunner
    from riverrun.coordinator.settings import GroupSettings
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


class GroupRequests(ABC):
    settings: GroupSettings

    @abstractmethod
    def find(self, group_id: str, *, is_empty_allowed: bool = False) -> ShardRunner:
        """Who coordinates a group here. The empty id is allowed where old clients used it."""

    @abstractmethod
    def active(self) -> Iterable[ShardRunner]:
        """All partitions that this node leads, if all of them are loaded."""

    def join_group(self, caller: Caller, request: JoinGroupRequest) -> Awaitable[JoinGroupResponse]:
        settings = self.settings
        timeout = request.session_timeout_ms
        is_good = settings.session_timeout_min_ms <= timeout <= settings.session_timeout_max_ms
        if request.group_id and not is_good:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        runner = self.find(request.group_id)
        return runner.ask(
            JoinGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.join(turn, waiter, caller, request),
        )

    def sync_group(self, request: SyncGroupRequest) -> Awaitable[SyncGroupResponse]:
        runner = self.find(request.group_id)
        return runner.ask(
            SyncGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.sync(turn, waiter, request),
        )

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        runner = self.find(request.group_id)
        return runner.shard.heartbeat(runner.turn(), request)

    def leave_group(self, request: LeaveGroupRequest) -> Awaitable[LeaveGroupResponse]:
        runner = self.find(request.group_id)
        return runner.ask(
            LeaveGroupResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.leave(turn, waiter, request),
        )

    def commit_offsets(
        self, caller: Caller, request: OffsetCommitRequest
    ) -> Awaitable[OffsetCommitResponse]:
        runner = self.find(request.group_id, is_empty_allowed=True)
        return runner.ask(
            OffsetCommitResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.commit(turn, waiter, caller, request),
        )

    def fetch_offsets(
        self, group_id: str, topics: Sequence[OffsetFetchRequestTopics] | None
    ) -> OffsetFetchResponseGroup:
        return self.find(group_id, is_empty_allowed=True).shard.fetch(group_id, topics)

    def fetch_stable_offsets(
        self, group_id: str, topics: Sequence[OffsetFetchRequestTopics] | None
    ) -> Awaitable[OffsetFetchResponseGroup]:
        """As above, but after all commits that are on their way."""
        runner = self.find(group_id, is_empty_allowed=True)
        return runner.settled(lambda: runner.shard.fetch(group_id, topics))

    def delete_offsets(self, request: OffsetDeleteRequest) -> Awaitable[OffsetDeleteResponse]:
        runner = self.find(request.group_id)
        return runner.ask(
            OffsetDeleteResponse,
            request.group_id,
            lambda turn, waiter: runner.shard.delete_offsets(turn, waiter, request),
        )

    def describe_group(self, group_id: str, api_version: int) -> DescribedGroup:
        try:
            runner = self.find(group_id, is_empty_allowed=True)
        except KafkaError as error:
            return described_error(group_id, error.code)
        return runner.shard.describe(group_id, api_version)

    def list_groups(self, states: Iterable[str], types: Iterable[str]) -> list[ListedGroup]:
        wanted_states = frozenset(state.lower() for state in states)
        wanted_types = frozenset(kind.lower() for kind in types)
        found: list[ListedGroup] = []
        for runner in self.active():
            found += runner.shard.listed(wanted_states, wanted_types)
        return found

    def delete_group(self, group_id: str) -> Awaitable[DeletableGroupResult]:
        runner = self.find(group_id, is_empty_allowed=True)
        return runner.ask(
            DeletableGroupResult,
            group_id,
            lambda turn, waiter: runner.shard.delete_group(turn, waiter, group_id),
        )
