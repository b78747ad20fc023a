"""Reassignments that do harm or make no progress are cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicId, TopicName, TopicPartition
from riverrun.placement.planner.stored_plan import StoredRollback
from riverrun.ports.metrics import SECONDS_BOUNDS, Histogram, Metrics
from riverrun.replication.moves.latency import WINDOW_SECONDS, ProduceLatency
from riverrun.replication.moves.rollback import CHECK_SECONDS, CopyDisk, Rollbacks
from riverrun.replication.moves.rules import CopyProgress, InSyncMinimum, RollbackReason
from riverrun.replication.partition import Partition
from riverrun.replication.settings import ReplicationSettings
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
from tests.storage.machines import NOW_MS, Machine
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
    """Records the requests of ``Rollbacks``. An error code is that of the next response."""

    def __init__(self) -> None:
        self.asked: list[AlterPartitionReassignmentsRequest] = []
        self.codes: list[ErrorCode | KafkaError] = []
        self.reasons: dict[str, StoredRollback] = {}
        self.refuses_reasons = False
        self.cancels_before_reason = 0

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

    async def store_reasons(self, changes: Mapping[TopicPartition, StoredRollback | None]) -> None:
        if self.refuses_reasons:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self.cancels_before_reason = len(self.asked)
        for name, reason in changes.items():
            if reason is None:
                del self.reasons[str(name)]
            else:
                self.reasons[str(name)] = reason


class OneReplica:
    """The replicas of a node with one partition."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.peers = SimpleNamespace(is_alive=lambda _: True)
        self.unopened = {"full": None}

    def __iter__(self) -> Iterator[Partition]:
        return iter([self._leader.partition])

    def find(self, topic: str, index: int) -> Partition | None:
        return None


class Disk:
    is_full = False
    used = 0.1

    async def used_ratio(self) -> float:
        return self.used


def run_for(
    seconds: float,
    leader: Leader,
    controller: Controller,
    timeout_ms: int = 10_000,
    *,
    node: NodeId = ME,
    disk: Disk | None = None,
    requested: RollbackReason | None = None,
    image: Image | None = None,
    has_disk_failed: bool = False,
) -> Metrics:
    machine, metrics = Machine(), Metrics()
    loop = VirtualLoop(machine.clock)
    space = disk or Disk()

    async def scenario() -> None:
        rollbacks = Rollbacks(
            OneReplica(leader),  # type: ignore[arg-type]
            node,
            image=lambda: image or Image(),
            send=controller.send,
            store_reasons=controller.store_reasons,
            settings=lambda: ReplicationSettings(reassignment_stall_ms=timeout_ms),
            disk=CopyDisk(is_full=lambda: space.is_full, used_ratio=space.used_ratio),
            latency=ProduceLatency(Histogram(SECONDS_BOUNDS)),
            clock=SimpleNamespace(monotonic=loop.time, now_ms=lambda: NOW_MS),
            metrics=metrics,
        )
        if requested is not None:
            rollbacks.request(leader.partition, requested, THREE)
        if has_disk_failed:
            await rollbacks.disk_failed()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await rollbacks.run()

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    return metrics


def counted(metrics: Metrics) -> dict[str, int]:
    known = metrics.families["riverrun_reassignments_rolled_back_total"].counters
    return {labels[0][1]: one.value for labels, one in known.items() if one.value}


def test_leader_asks_the_controller_to_cancel() -> None:
    leader, controller = moving(), Controller()
    metrics = run_for(10 + 3 * CHECK_SECONDS, leader, controller)
    assert counted(metrics) == {"stalled": 1}
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


def test_requested_rollback_is_sent_at_once_with_its_reason() -> None:
    controller = Controller()
    metrics = run_for(0.5, moving(), controller, requested=RollbackReason.CONTENT)
    assert (len(controller.asked), counted(metrics)) == (1, {"content": 1})


def test_reason_is_stored_unless_the_cancel_is_refused() -> None:
    controller = Controller()
    run_for(0.5, moving(), controller, requested=RollbackReason.CONTENT)
    (reason,) = controller.reasons.values()
    assert (reason.reason, reason.replica, reason.at_ms) == ("content", THREE, NOW_MS)
    assert "node 3 differed" in reason.text
    assert controller.cancels_before_reason == 0, "the end of the move finds it"
    refusing = Controller()
    refusing.codes = [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    run_for(0.5, moving(), refusing, requested=RollbackReason.CONTENT)
    assert not refusing.reasons


def test_move_is_cancelled_although_its_reason_cannot_be_stored() -> None:
    controller = Controller()
    controller.refuses_reasons = True
    run_for(0.5, moving(), controller, requested=RollbackReason.CONTENT)
    assert len(controller.asked) == 1


# The disk of the new replica


def arriving() -> Leader:
    """The partition on its new replica, node 3, which does not lead."""
    return moving(leader=TWO)


def test_copy_on_a_disk_above_its_ceiling_is_rolled_back_by_its_own_node() -> None:
    controller, disk = Controller(), Disk()
    run_for(3, arriving(), controller, node=THREE, disk=disk)
    assert not controller.asked
    disk.used = 0.96
    metrics = run_for(3, arriving(), controller, node=THREE, disk=disk)
    assert (len(controller.asked), counted(metrics)) == (1, {"disk": 1})


class FreedDisk(Disk):
    """It has space again from the second measurement on."""

    measurements = 0

    async def used_ratio(self) -> float:
        self.measurements += 1
        return 0.96 if self.measurements == 1 else 0.1


def test_no_move_is_rolled_back_for_a_disk_that_was_above_its_ceiling_before() -> None:
    controller, disk = Controller(), FreedDisk()
    run_for(4.5 * CHECK_SECONDS, arriving(), controller, node=THREE, disk=disk)
    assert (len(controller.asked), disk.measurements) == (1, 2)


def test_copy_on_a_full_disk_is_rolled_back() -> None:
    controller, disk = Controller(), Disk()
    disk.is_full = True
    run_for(3, arriving(), controller, node=THREE, disk=disk)
    assert len(controller.asked) == 1


def test_copies_on_a_disk_that_fails_are_rolled_back_before_their_node_stops() -> None:
    controller = Controller()
    metrics = run_for(3, arriving(), controller, node=THREE, has_disk_failed=True)
    assert (len(controller.asked), counted(metrics)) == (1, {"disk": 1})
    (reason,) = controller.reasons.values()
    assert "disk of node 3" in reason.text


def test_failed_disk_of_another_replica_rolls_nothing_back() -> None:
    controller = Controller()
    run_for(3, arriving(), controller, node=TWO, has_disk_failed=True)
    assert not controller.asked


def test_copy_whose_log_found_no_room_is_rolled_back() -> None:
    controller, disk = Controller(), Disk()
    disk.used = 1.0
    leader = Leader()
    state = replace(leader.state, isr=(ME, TWO), adding=(THREE,))
    topic = TopicImage(name=TopicName("full"), id=TopicId(UUID(int=1)), partitions=(state,))
    image = replace(Image(), topics_by_name={topic.name: topic})
    metrics = run_for(3, leader, controller, node=THREE, disk=disk, image=image)
    assert [topic.name for request in controller.asked for topic in request.topics] == ["full"]
    assert counted(metrics) == {"disk": 1}


def test_full_disk_of_another_replica_rolls_nothing_back() -> None:
    controller, disk = Controller(), Disk()
    disk.is_full = True
    run_for(3, arriving(), controller, node=TWO, disk=disk)
    assert not controller.asked


# The minimum of in-sync replicas


def below_minimum(rule: InSyncMinimum, leader: Leader, now: float) -> list[int]:
    return list(rule.check([leader.partition], now, LIMIT).values())


def test_isr_that_falls_below_its_minimum_during_a_move_rolls_it_back() -> None:
    leader, rule = moving(), InSyncMinimum(lambda _: True)
    leader.partition.log.configure(LogSettings(min_insync_replicas=2))
    assert below_minimum(rule, leader, 0) == []
    leader.apply(isr=(ME,))
    assert below_minimum(rule, leader, 1) == []
    assert below_minimum(rule, leader, 10.9) == []
    assert below_minimum(rule, leader, 11) == [TWO]


def test_move_that_began_below_the_minimum_continues() -> None:
    """It may be the repair."""
    leader, rule = moving(isr=(ME,)), InSyncMinimum(lambda _: True)
    leader.partition.log.configure(LogSettings(min_insync_replicas=2))
    below_minimum(rule, leader, 0)
    assert below_minimum(rule, leader, 100) == []


def test_move_continues_if_the_missing_replica_is_dead() -> None:
    leader, rule = moving(), InSyncMinimum(lambda node: node != TWO)
    leader.partition.log.configure(LogSettings(min_insync_replicas=2))
    below_minimum(rule, leader, 0)
    leader.apply(isr=(ME,))
    below_minimum(rule, leader, 1)
    assert below_minimum(rule, leader, 100) == []


# The latency of produce requests


class Produces:
    """Windows of requests with one duration each."""

    def __init__(self) -> None:
        self._histogram = Histogram(SECONDS_BOUNDS)
        self._latency = ProduceLatency(self._histogram)
        self._now = 0.0
        self.check(is_moving=False)

    def check(self, *, is_moving: bool) -> bool:
        return self._latency.check(
            self._now, is_moving=is_moving, multiple=10.0, limit_seconds=60.0
        )

    def pass_window(self, seconds: float, *, is_moving: bool, requests: int = 100) -> bool:
        for _ in range(requests):
            self._histogram.observe(seconds)
        self._now += WINDOW_SECONDS
        return self.check(is_moving=is_moving)


def test_produce_requests_that_stay_slow_during_a_move_roll_it_back() -> None:
    produces = Produces()
    for _ in range(5):
        assert not produces.pass_window(0.004, is_moving=False)
    slow = [produces.pass_window(2.0, is_moving=True) for _ in range(6)]
    assert slow == [False] * 5 + [True]


def test_short_slowness_and_a_usual_one_roll_nothing_back() -> None:
    produces = Produces()
    for _ in range(5):
        produces.pass_window(0.1, is_moving=False)
    for _ in range(20):
        assert not produces.pass_window(2.0, is_moving=True)
        assert not produces.pass_window(0.1, is_moving=True)
    for _ in range(20):
        assert not produces.pass_window(0.9, is_moving=True), "ten times the usual is allowed"
    for _ in range(20):
        assert not produces.pass_window(5.0, is_moving=True, requests=5), "too few to tell"


def test_latency_below_half_a_second_is_never_too_slow() -> None:
    produces = Produces()
    for _ in range(5):
        produces.pass_window(0.001, is_moving=False)
    assert not any(produces.pass_window(0.4, is_moving=True) for _ in range(20))


def test_latency_without_a_baseline_rolls_nothing_back() -> None:
    """A node that has just started, or whose producers have, does not know what is usual."""
    produces = Produces()
    assert not any(produces.pass_window(2.0, is_moving=True) for _ in range(20))
    produces.pass_window(2.0, is_moving=False)
    assert not any(produces.pass_window(2.0, is_moving=True) for _ in range(20))
