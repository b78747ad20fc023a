"""Rates of moves come from the looks of the last seconds."""

from __future__ import annotations

import pytest

from riverrun.admin.balance.moves_report import MoveProgress
from riverrun.console.move_sampler import STALLED_SECONDS, MoveSampler
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.plan import Goal, PlannedMove
from riverrun.placement.planner.stored_plan import PlanHeader, PlanProgress, StoredPlan

AT = TopicPartition(TopicName("orders"), PartitionIndex(3))


def progress(done: int, total: int = 1000) -> MoveProgress:
    return MoveProgress(
        at=AT, replicas=(1, 2, 3), adding=(3,), removing=(1,), bytes_done=done, bytes_total=total
    )


def plan(moving: tuple[int, ...]) -> StoredPlan:
    return StoredPlan(
        id="move-1", header=PlanHeader(reason="a test"), progress=PlanProgress(moving=moving)
    )


MOVE = PlannedMove(
    topic="orders",
    partition=3,
    before=(NodeId(1), NodeId(2)),
    after=(NodeId(3), NodeId(2)),
    leader=None,
    goal=Goal.REQUEST,
    size_bytes=10.0,
    bytes_in=0.0,
)


def test_the_first_look_has_no_rate() -> None:
    (found,) = MoveSampler().add([progress(0)], 0.0)
    assert (found.rate, found.seconds_left) == (None, None)


def test_the_rate_is_a_mean() -> None:
    sampler = MoveSampler()
    for second in range(4):
        (found,) = sampler.add([progress(second * 100)], float(second))
    assert found.rate == pytest.approx(100.0)
    assert found.seconds_left == pytest.approx(7.0)
    (later,) = sampler.add([progress(300)], 10.0)
    assert later.rate is not None
    assert 20 < later.rate < 100


def test_two_looks_at_once_give_no_rate() -> None:
    sampler = MoveSampler()
    sampler.add([progress(0)], 0.0)
    (found,) = sampler.add([progress(900)], 0.1)
    assert found.rate is None


def test_a_move_stalls_when_nothing_arrives_and_something_is_missing() -> None:
    sampler = MoveSampler()

    def stalls(done: int, now: float) -> bool:
        (found,) = sampler.add([progress(done)], now)
        return sampler.is_stalled(found)

    assert not stalls(100, 0.0)
    assert stalls(100, STALLED_SECONDS)
    assert not stalls(101, STALLED_SECONDS + 1)
    assert not stalls(1000, STALLED_SECONDS + 2)
    assert not stalls(1000, 3 * STALLED_SECONDS)


def test_moves_know_the_plan_that_runs_them() -> None:
    sampler = MoveSampler()
    running = plan(moving=(0,))
    assert sampler.unknown_plans([running]) == ["move-1"]
    sampler.learn({"move-1": (MOVE,)})
    assert sampler.unknown_plans([running]) == []
    assert sampler.planned([running]) == {("orders", 3): ("move-1", MOVE)}
    assert sampler.planned([plan(moving=())]) == {}
    assert sampler.moves_of(running) == (MOVE,)
    sampler.unknown_plans([])
    assert sampler.moves_of(running) is None
