"""A member gets through a rebalance, whatever the coordinator responds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.client import consumer_member as module
from riverrun.client.consumer_member import ConsumerMember
from riverrun.client.consumer_protocol import (
    read_assignment,
    write_assignment,
    write_subscription,
)
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.join_group_response import (
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse
from riverrun.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

from .fakes import FakeCluster

QUICK = RetryPolicy(tries_max=4, total_s_max=2.0, backoff_s=0.001, backoff_s_max=0.002)
PLACE = TopicPartition(TopicName("t"), PartitionIndex(0))
NONE = ErrorCode.NONE


class Coordinator:
    """Assigns ids and generations, and returns the listed error codes before it succeeds."""

    def __init__(self, *, is_leader: bool = True) -> None:
        self.is_leader = is_leader
        self.joins: list[ErrorCode] = []
        self.syncs: list[ErrorCode] = []
        self.heartbeats: list[ErrorCode] = []
        self.commits: list[ErrorCode] = []
        self.generation = 0
        self.ids = 0
        self.requests: list[Any] = []
        self.heartbeat_received = asyncio.Event()
        self.during_heartbeat: Callable[[], None] = lambda: None
        self.modules_of_node = self.modules()

    async def join(self, _: Any, __: Any, request: Any) -> JoinGroupResponse:
        self.requests.append(request)
        code = self.joins.pop(0) if self.joins else NONE
        member_id = request.member_id
        if not member_id:
            self.ids += 1
            member_id, code = f"m{self.ids}", ErrorCode.MEMBER_ID_REQUIRED
        if code is NONE:
            self.generation += 1
        members = (
            JoinGroupResponseMember(member_id=member_id, metadata=write_subscription(["t"])),
            JoinGroupResponseMember(member_id="zz", metadata=b"another protocol"),
        )
        return JoinGroupResponse(
            error_code=code,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name="range",
            leader=member_id if self.is_leader else "zz",
            member_id=member_id,
            members=members if self.is_leader else (),
        )

    async def sync(self, _: Any, __: Any, request: Any) -> SyncGroupResponse:
        self.requests.append(request)
        code = self.syncs.pop(0) if self.syncs else NONE
        assigned = {row.member_id: row.assignment for row in request.assignments}
        mine = assigned.get(request.member_id, write_assignment({"t": (0,)}))
        return SyncGroupResponse(error_code=code, assignment=mine)

    async def heartbeat(self, _: Any, __: Any, request: Any) -> HeartbeatResponse:
        self.requests.append(request)
        self.heartbeat_received.set()
        self.during_heartbeat()
        return HeartbeatResponse(error_code=self.heartbeats.pop(0) if self.heartbeats else NONE)

    async def commit(self, _: Any, __: Any, request: Any) -> OffsetCommitResponse:
        self.requests.append(request)
        code = self.commits.pop(0) if self.commits else NONE
        row = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(
            topics=(OffsetCommitResponseTopic(name="t", partitions=(row,)),)
        )

    async def leave(self, _: Any, __: Any, request: Any) -> LeaveGroupResponse:
        self.requests.append(request)
        return LeaveGroupResponse(error_code=NONE)

    def modules(self) -> dict[ApiKey, Any]:
        return {
            ApiKey.JOIN_GROUP: SimpleNamespace(handle=self.join),
            ApiKey.SYNC_GROUP: SimpleNamespace(handle=self.sync),
            ApiKey.HEARTBEAT: SimpleNamespace(handle=self.heartbeat),
            ApiKey.OFFSET_COMMIT: SimpleNamespace(handle=self.commit),
            ApiKey.LEAVE_GROUP: SimpleNamespace(handle=self.leave),
        }


def run(
    scenario: Callable[[Coordinator, ConsumerMember], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def wrapped() -> None:
        coordinator = Coordinator(**options)
        async with (
            FakeCluster(modules=coordinator.modules_of_node) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            await scenario(coordinator, ConsumerMember(pool, "g", ["t"]))

    asyncio.run(asyncio.wait_for(wrapped(), 20))


def test_leader_assigns_nothing_to_members_with_an_unknown_subscription() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        assert await member.join() == {"t": (0,)}
        assert (member.member_id, member.generation) == ("m1", 1)
        assigned = {row.member_id: row.assignment for row in coordinator.requests[-1].assignments}
        assert read_assignment(assigned["m1"]) == {"t": (0,)}
        assert read_assignment(assigned["zz"]) == {}
        offered = [protocol.name for protocol in coordinator.requests[0].protocols]
        assert offered == ["range", "roundrobin"]

    run(scenario)


def test_member_that_does_not_lead_sends_no_assignment() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        assert await member.join() == {"t": (0,)}
        assert coordinator.requests[-1].assignments == ()

    run(scenario, is_leader=False)


def test_rebalance_during_sync_joins_again_as_the_same_member() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        coordinator.syncs = [ErrorCode.REBALANCE_IN_PROGRESS]
        await member.join()
        assert (member.member_id, member.generation) == ("m1", 2)

    run(scenario)


def test_unknown_member_joins_again_as_a_new_one() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        coordinator.syncs = [ErrorCode.UNKNOWN_MEMBER_ID]
        await member.join()
        assert (member.member_id, member.generation) == ("m2", 2)

    run(scenario)


def test_request_is_retried_while_the_coordinator_loads() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        coordinator.syncs = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
        await member.join()
        assert member.generation == 1

    run(scenario)


def test_fatal_join_error_is_raised() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        coordinator.joins = [NONE, ErrorCode.INCONSISTENT_GROUP_PROTOCOL]
        with pytest.raises(KafkaError) as failure:
            await member.join()
        assert failure.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    run(scenario)


def test_number_of_rebalances_is_limited() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        coordinator.syncs = [ErrorCode.REBALANCE_IN_PROGRESS] * (2 * module.ROUNDS_MAX)
        with pytest.raises(KafkaError, match="no assignment"):
            await member.join()

    run(scenario)


def test_heartbeat_reports_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.001)

    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        await member.join()
        coordinator.heartbeats = [NONE, ErrorCode.REBALANCE_IN_PROGRESS]
        alive = asyncio.create_task(member.keep_alive())
        await member.must_rejoin.wait()
        assert member.member_id == "m1"
        await member.join()
        assert not member.must_rejoin.is_set()
        assert member.generation == 2
        coordinator.heartbeat_received.clear()
        await coordinator.heartbeat_received.wait()
        alive.cancel()

    run(scenario)


def test_late_heartbeat_does_not_end_a_new_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group has lost its last rebalance in a failover, so the generation is the same."""
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.001)

    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        await member.join()

        def join_again() -> None:
            member.member_id = "m2"
            coordinator.during_heartbeat = next_received.set

        next_received = asyncio.Event()
        coordinator.during_heartbeat = join_again
        coordinator.heartbeats = [ErrorCode.UNKNOWN_MEMBER_ID]
        alive = asyncio.create_task(member.keep_alive())
        await next_received.wait()
        alive.cancel()
        assert coordinator.requests[-1].member_id == "m2"
        assert (member.member_id, member.generation) == ("m2", 1)
        assert not member.must_rejoin.is_set()

    run(scenario)


def test_commit_fails_after_the_membership_was_lost() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        await member.join()
        assert await member.commit({PLACE: 5})
        request = coordinator.requests[-1]
        assert (request.generation_id_or_member_epoch, request.member_id) == (1, "m1")
        assert request.topics[0].partitions[0].committed_offset == 5
        coordinator.commits = [ErrorCode.ILLEGAL_GENERATION]
        assert not await member.commit({PLACE: 6})
        assert member.must_rejoin.is_set()

    run(scenario)


def test_member_leaves_once() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        await member.leave()
        assert coordinator.requests == []
        await member.join()
        await member.leave()
        assert [row.member_id for row in coordinator.requests[-1].members] == ["m1"]
        count = len(coordinator.requests)
        await member.leave()
        assert len(coordinator.requests) == count

    run(scenario)


def test_member_leaves_while_joining_without_waiting_for_the_others() -> None:
    async def scenario(coordinator: Coordinator, member: ConsumerMember) -> None:
        sync_received, others = asyncio.Event(), asyncio.Event()
        sync = coordinator.sync

        async def wait_for_others(*request: Any) -> SyncGroupResponse:
            sync_received.set()
            await others.wait()
            return await sync(*request)

        coordinator.modules_of_node[ApiKey.SYNC_GROUP].handle = wait_for_others
        joining = asyncio.create_task(member.join())
        await sync_received.wait()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        await asyncio.wait_for(member.leave(), module.LEAVE_S_MAX / 3)
        assert [row.member_id for row in coordinator.requests[-1].members] == ["m1"]
        others.set()

    run(scenario)
