"""Reassignments without progress are cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.metrics import Metrics
from riverrun.replication.stalled_moves import CHECK_SECONDS, CopyProgress, StalledMoves
from riverrun.storage.settings import LogSettings
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tests.replication.leaders import ME, THREE, TWO, Leader
from tests.storage.machines import Machine
from tests.storage.virtual_loop import VirtualLoop

LIMIT = 10.0
FOUR = NodeId(4)


def moving(**changes: Any) -> Leader:
    """Node 3 is a new replica, out of sync, of a partition with 200 records."""
    leader = Leader(isr=(ME, TWO))
    for _ in range(200):
        leader.append(b"a")
    leader.fetch(TWO, 200)
    leader.state = replace(leader.state, adding=(THREE,), **changes)
    leader.apply()
    return leader


def check(progress: CopyProgress, leader: Leader, now: float) -> list[int]:
    return list(progress.check([leader.partition], now, LIMIT).values())


def test_replica_without_progress_is_stalled_after_the_limit() -> None:
    leader, progress = moving(), CopyProgress()
    assert check(progress, leader, 0) == []
    assert check(progress, leader, 9.9) == []
    assert check(progress, leader, 10) == [THREE]


def test_each_fetch_of_more_records_starts_the_time_again() -> None:
    leader, progress = moving(), CopyProgress()
    check(progress, leader, 0)
    leader.fetch(THREE, 5)
    assert check(progress, leader, 10) == []
    assert check(progress, leader, 19.9) == []
    assert check(progress, leader, 20) == [THREE]


def test_fetches_of_the_same_records_are_no_progress() -> None:
    """A replica with a full disk fetches the same records again and again."""
    leader, progress = moving(), CopyProgress()
    for now in range(11):
        leader.fetch(THREE, 5)
        stalled = check(progress, leader, now)
    assert stalled == [THREE]


def test_replica_in_sync_is_not_stalled() -> None:
    leader, progress = moving(isr=(ME, TWO, THREE)), CopyProgress()
    check(progress, leader, 0)
    assert check(progress, leader, 100) == []


def test_replica_of_a_dropped_target_is_not_stalled() -> None:
    leader, progress = moving(removing=(THREE,)), CopyProgress()
    check(progress, leader, 0)
    assert check(progress, leader, 100) == []


def test_new_target_starts_the_time_of_its_replicas_again() -> None:
    """The leader must not cancel a move that began a moment ago, because of the one before."""
    leader, progress = moving(), CopyProgress()
    check(progress, leader, 0)
    leader.state = replace(leader.state, replicas=(ME, THREE, TWO), removing=(TWO,))
    leader.apply()
    assert check(progress, leader, 10) == []
    leader.apply(isr=(ME,))
    assert check(progress, leader, 20) == [THREE], "a change of the ISR is not a new target"


def test_own_stall_of_the_leader_is_no_stall_of_the_replica() -> None:
    leader, progress = moving(), CopyProgress()
    check(progress, leader, 0)
    progress.credit_stall(3600)
    assert check(progress, leader, 3609) == []


def test_move_whose_cancel_would_leave_too_few_in_sync_replicas_is_not_stalled() -> None:
    """2 is a new replica in sync. Without it the leader would be alone, and could not commit."""
    leader, progress = moving(), CopyProgress()
    leader.partition.log.configure(LogSettings(min_insync_replicas=2))
    leader.state = replace(leader.state, replicas=(ME, TWO, THREE, FOUR), adding=(TWO, THREE))
    leader.apply()
    check(progress, leader, 0)
    assert check(progress, leader, 100) == []
    leader.state = replace(leader.state, isr=(ME, TWO, FOUR))
    leader.apply()
    assert check(progress, leader, 100) == [THREE]


def test_move_whose_cancel_would_need_an_unclean_election_is_not_stalled() -> None:
    leader, progress = moving(isr=(ME,)), CopyProgress()
    leader.state = replace(leader.state, adding=(ME, THREE))
    leader.apply()
    check(progress, leader, 0)
    assert check(progress, leader, 100) == []


class Controller:
    """Records the requests of ``StalledMoves``. An error code is that of the next response."""

    def __init__(self) -> None:
        self.asked: list[AlterPartitionReassignmentsRequest] = []
        self.codes: list[ErrorCode | KafkaError] = []

    async def send(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        self.asked.append(request)
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        if isinstance(code, KafkaError):
            raise code
        return AlterPartitionReassignmentsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            error_message=None,
            responses=tuple(
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        ReassignablePartitionResponse(
                            partition_index=one.partition_index, error_code=code, error_message=None
                        )
                        for one in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )


def run_for(
    seconds: float, leader: Leader, controller: Controller, timeout_ms: int = 10_000
) -> Metrics:
    machine, metrics = Machine(), Metrics()
    loop = VirtualLoop(machine.clock)
    moves = StalledMoves(
        [leader.partition],  # type: ignore[arg-type]
        send=controller.send,
        timeout_ms=lambda: timeout_ms,
        clock=SimpleNamespace(monotonic=loop.time),
        metrics=metrics,
    )

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await moves.run()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return metrics


def test_leader_asks_the_controller_to_cancel() -> None:
    leader, controller = moving(), Controller()
    run_for(10 + 3 * CHECK_SECONDS, leader, controller)
    [request] = controller.asked
    [topic] = request.topics
    assert topic.name == leader.partition.name.topic
    assert [(one.partition_index, one.replicas) for one in topic.partitions] == [(0, None)]


def test_cancel_that_fails_is_repeated_after_the_limit() -> None:
    leader, controller = moving(), Controller()
    controller.codes = [KafkaError(ErrorCode.NOT_CONTROLLER), ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    run_for(35, leader, controller)
    assert len(controller.asked) == 3


def test_negative_timeout_disables_the_cancel() -> None:
    controller = Controller()
    run_for(100, moving(), controller, timeout_ms=-1)
    assert not controller.asked
