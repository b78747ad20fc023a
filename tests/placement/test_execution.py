"""Estimates, triggers, maintenance and the order in which moves start."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from riverrun.model.ids import NodeId
from riverrun.placement.planner.estimate import estimate
from riverrun.placement.planner.fairness import BalanceFigures, fairness
from riverrun.placement.planner.plan import Goal, PlannedMove, make_plan
from riverrun.placement.planner.schedule import (
    MoveLimits,
    MoveState,
    PartitionNow,
    next_step,
    state_of,
)
from riverrun.placement.planner.triggers import BalanceTrigger, brokers_to_heal
from tests.placement.layouts import world


def ids(*nodes: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in nodes)


def move(
    before: tuple[int, ...], after: tuple[int, ...], *, size: float = 100.0, rate: float = 0.0,
    partition: int = 0, goal: Goal = Goal.REPLICAS,
) -> PlannedMove:  # fmt: skip
    return PlannedMove(
        topic="t", partition=partition, before=ids(*before), after=ids(*after),
        leader=NodeId(before[0]), goal=goal, size_bytes=size, bytes_in=rate,
    )  # fmt: skip


def test_busiest_broker_determines_the_time() -> None:
    moves = [move((1, 2), (1, 3)), move((2, 4), (2, 3)), move((1, 2), (1, 4), size=50.0)]
    found = estimate(moves, throttle=10.0)
    assert (found.seconds, found.busiest, found.is_receiving) == (20.0, 3, True)
    assert found.text == "about 20 s; broker 3 receives the most"
    assert estimate(moves, throttle=10.0, measured=5.0).seconds == 40.0
    both = estimate([move((1, 2), (1, 3)), move((1, 2), (1, 4))], throttle=10.0)
    assert both.text == "about 20 s; broker 1 sends the most"


def test_partition_written_faster_than_copied_never_finishes() -> None:
    found = estimate([move((1, 2), (1, 3), rate=10.0)], throttle=10.0)
    assert found.seconds is None
    assert found.text.startswith("will not finish at this rate: t-0 is written faster")
    assert estimate([move((1, 2), (1, 3), rate=6.0)], throttle=10.0).seconds == 25.0


def test_reordering_takes_no_time() -> None:
    assert estimate([move((1, 2), (2, 1))], throttle=1.0).text == "nothing to copy"


def figures(replicas: list[float], disk: list[float]) -> BalanceFigures:
    even = fairness([10.0, 10.0], [1.0, 1.0])
    return BalanceFigures(
        replicas=fairness(replicas, [1.0] * len(replicas)), leaders=even,
        disk=fairness(disk, [1.0] * len(disk)), bytes_in=even, bytes_out=even,
        topic_replica_spread=0, topic_leader_spread=0,
    )  # fmt: skip


def test_balancing_starts_above_one_threshold_and_stops_below_another() -> None:
    trigger = BalanceTrigger()
    slightly = figures([10, 10], [108, 92])
    assert trigger.unbalanced(slightly, is_balancing=False) == ()
    assert trigger.unbalanced(slightly, is_balancing=True) == ("disk",)
    assert trigger.unbalanced(figures([10, 10], [120, 80]), is_balancing=False) == ("disk",)
    assert trigger.unbalanced(figures([10, 10], [104, 96]), is_balancing=True) == ()


def test_counts_that_differ_by_one_are_even() -> None:
    trigger = BalanceTrigger()
    assert trigger.unbalanced(figures([2, 1], [1, 1]), is_balancing=True) == ()
    assert trigger.unbalanced(figures([3, 1], [1, 1]), is_balancing=False) == ("replicas",)


def test_brokers_are_healed_after_the_timeout() -> None:
    away = {NodeId(1): 1799.0, NodeId(2): 1800.0}
    assert brokers_to_heal(away, brokers=20).brokers == (2,)
    assert brokers_to_heal({NodeId(1): 1799.0}, brokers=20).held_back is None


def test_outage_of_more_than_a_third_is_not_healed() -> None:
    away = {NodeId(n): 4000.0 for n in range(8)}
    found = brokers_to_heal(away, brokers=20)
    assert found.brokers == ()
    assert found.held_back is not None
    assert found.held_back.startswith("8 of 20 brokers are away")
    assert len(brokers_to_heal(dict(list(away.items())[:6]), brokers=20).brokers) == 6


Table = dict[tuple[str, int], PartitionNow]


def begin(moves: list[PlannedMove]) -> Table:
    return {
        (one.topic, one.partition): PartitionNow(
            replicas=one.before, leader=one.leader, is_moving=False
        )
        for one in moves
    }


def check_limits(moving: list[PlannedMove], limits: MoveLimits) -> None:
    copying = [one for one in moving if one.adding]
    assert len(copying) <= limits.in_cluster
    into = Counter(node for one in copying for node in one.adding)
    out_of = Counter(one.leader for one in copying)
    assert all(count <= limits.per_destination for count in into.values())
    assert all(count <= limits.per_source for count in out_of.values())


@given(st.integers(3, 7), st.integers(0, 2**32), st.data())
def test_plan_runs_to_its_end_within_limits_from_any_interruption(
    count: int, seed: int, data: st.DataObject
) -> None:
    before = world(count, [(14, 3), (9, 2), (8, 1)], seed=seed, even=False)
    moves = list(make_plan(before.layout()).moves)
    limits = MoveLimits(per_source=2, per_destination=1, in_cluster=4, leaders_at_once=3)
    table = begin(moves)
    for _ in range(20 * len(moves) + 5):
        # Each step starts from the table alone, as a new controller would.
        step = next_step(moves, lambda t, p: table.get((t, p)), limits=limits)
        for one in step.start:
            assert not table[one.topic, one.partition].is_moving
            table[one.topic, one.partition] = PartitionNow(
                replicas=one.after, leader=one.leader, is_moving=True
            )
        moving = [one for one in moves if table[one.topic, one.partition].is_moving]
        check_limits(moving, limits)
        if step.is_finished:
            break
        ended = data.draw(st.lists(st.sampled_from(moving), max_size=3)) if moving else []
        for one in ended or moving[:1]:
            table[one.topic, one.partition] = PartitionNow(
                replicas=one.after, leader=one.after[0], is_moving=False
            )
    assert all(table[one.topic, one.partition].replicas == one.after for one in moves)


def test_busy_destination_does_not_hold_back_other_moves() -> None:
    moves = [
        move((1, 2), (1, 3), partition=0), move((2, 1), (2, 3), partition=1),
        move((2, 1), (2, 4), partition=2),
    ]  # fmt: skip
    table = begin(moves)
    limits = MoveLimits(per_destination=1)
    step = next_step(moves, lambda t, p: table.get((t, p)), limits=limits)
    assert [one.partition for one in step.start] == [0, 2]
    assert (step.waiting, step.moving) == (1, 0)
    others = [move((5, 6), (5, 4), partition=9)]
    step = next_step(moves, lambda t, p: table.get((t, p)), limits=limits, others_in_flight=others)
    assert [one.partition for one in step.start] == [0]


def test_changed_and_deleted_partitions_are_dropped() -> None:
    one = move((1, 2), (1, 3))
    assert state_of(one, None) is MoveState.DROPPED
    elsewhere = PartitionNow(replicas=ids(4, 5), leader=NodeId(4), is_moving=False)
    assert state_of(one, elsewhere) is MoveState.DROPPED
    step = next_step([one], lambda *_: None)
    assert step.is_finished
    assert step.dropped == 1


def test_reordering_waits_for_the_moves_that_copy_data() -> None:
    moves = [move((1, 2), (1, 3), partition=0), move((1, 2), (2, 1), partition=1)]
    table = begin(moves)
    assert [m.partition for m in next_step(moves, lambda t, p: table.get((t, p))).start] == [0]
    table["t", 0] = PartitionNow(replicas=ids(1, 3), leader=NodeId(1), is_moving=False)
    assert [m.partition for m in next_step(moves, lambda t, p: table.get((t, p))).start] == [1]
