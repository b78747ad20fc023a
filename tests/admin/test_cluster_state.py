"""The input of a plan, from what brokers report."""

from __future__ import annotations

from dataclasses import replace

from riverrun.admin.balance.cluster_state import (
    BrokerView,
    ClusterView,
    PartitionState,
    layout_of,
)
from riverrun.admin.balance.decommissioning import emptying_plan
from riverrun.admin.balance.plan_report import described_plan, summary, traffic_line
from riverrun.admin.balance.planning import plan_of
from riverrun.admin.balance.topic_plans import move_plan
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.estimate import estimate
from riverrun.placement.planner.plan import make_plan
from riverrun.placement.traffic import BrokerTraffic, ClusterTraffic

GIB = 2**30


def view(*brokers: BrokerView) -> ClusterView:
    """Ten partitions of one replica on the first broker; each disk has 100 GiB and 10 in use."""
    return ClusterView(
        brokers={one.id: one for one in brokers},
        partitions=[
            PartitionState(
                at=TopicPartition(TopicName("t"), PartitionIndex(index)),
                replicas=(brokers[0].id,),
                in_sync=(brokers[0].id,),
                leader=brokers[0].id,
            )
            for index in range(10)
        ],
        copy_bytes={},
        disks={one.id: (10 * GIB, 100 * GIB) for one in brokers},
        min_in_sync={},
    )


def broker(node: int, *, weight: float = 1.0, disk_bytes: int = 0) -> BrokerView:
    return BrokerView(id=node, rack=None, is_fenced=False, weight=weight, disk_bytes=disk_bytes)


def held_after_a_plan(state: ClusterView) -> dict[int, int]:
    plan = make_plan(layout_of(state))
    held = dict.fromkeys(state.brokers, 0)
    held[1] = 10 - len(plan.moves)
    for move in plan.moves:
        held[move.after[0]] += 1
    return held


def test_declared_weight_divides_replicas() -> None:
    assert held_after_a_plan(view(broker(1), broker(2))) == {1: 5, 2: 5}
    assert held_after_a_plan(view(broker(1, weight=4), broker(2))) == {1: 8, 2: 2}


def test_declared_size_of_a_disk_replaces_the_measured_one() -> None:
    assert held_after_a_plan(view(broker(1), broker(2, disk_bytes=11 * GIB))) == {1: 10, 2: 0}
    layout = layout_of(view(broker(1), broker(2, disk_bytes=50 * GIB)))
    loads = [layout.brokers[layout.index_of[NodeId(node)]].load for node in (1, 2)]
    assert [load and load.disk_capacity for load in loads] == [100 * GIB, 50 * GIB]


def measured(bytes_in: float) -> ClusterTraffic:
    """Each partition on the first broker is written with this many bytes per second."""
    busy = BrokerTraffic(seconds=60, bytes_in=10 * bytes_in, topics={"t": (bytes_in, 0.0)})
    idle = BrokerTraffic(seconds=60)
    return ClusterTraffic({NodeId(1): busy, NodeId(2): idle}, (NodeId(1), NodeId(2)))


def test_move_of_a_partition_that_is_written_faster_than_the_throttle_does_not_finish() -> None:
    state = replace(view(broker(1), broker(2)), traffic=measured(500_000.0))
    for plan in (plan_of(state), move_plan(state, "t", None, (2,)), emptying_plan(state, 1)):
        assert {move.bytes_in for move in plan.moves} == {500_000.0}
        slow = estimate(plan.moves, throttle=400_000.0)
        assert slow.seconds is None
        assert "will not finish at this rate: t-" in summary(plan, slow)
        assert described_plan(plan, slow, state.traffic)["outlook"] == slow.text
        assert estimate(plan.moves, throttle=600_000.0).seconds is not None


def test_move_has_no_rate_where_traffic_is_not_measured() -> None:
    state = view(broker(1), broker(2))
    plan = plan_of(state)
    assert {move.bytes_in for move in plan.moves} == {0.0}
    time_needed = estimate(plan.moves, throttle=1.0)
    assert time_needed.endless == ()
    described = described_plan(plan, time_needed, state.traffic)["traffic"]
    assert isinstance(described, dict)
    assert described["measured"] is False


def test_rates_reach_the_planner_only_if_they_are_worth_a_move() -> None:
    state = view(broker(1), broker(2))
    assert not layout_of(replace(state, traffic=measured(10_000.0))).has_rates
    layout = layout_of(replace(state, traffic=measured(1_000_000.0)))
    assert layout.has_rates
    assert list(layout.bytes_in) == [1_000_000.0] * 10


def test_words_say_whether_traffic_was_measured() -> None:
    assert "9.5 MiB/s in" in traffic_line(measured(1_000_000.0))
    assert "from 1 MB/s per node" in traffic_line(measured(10.0))
    silent = ClusterTraffic({}, (NodeId(1), NodeId(2)))
    assert traffic_line(silent).startswith("The traffic of nodes 1, 2 is not known")


def test_words_count_partitions_with_another_order_of_followers() -> None:
    state = view(broker(1), broker(2), broker(3))
    partitions = [
        replace(one, replicas=(NodeId(1), NodeId(2), NodeId(3))) for one in state.partitions
    ]
    plan = move_plan(replace(state, partitions=partitions), "t", None, (1, 3, 2))
    text = summary(plan, None)
    assert text.startswith("0 partitions would change replicas; 0 B would be copied; ")
    assert text.endswith(
        "0 preferred leaders would change; 10 partitions would get another order of followers."
    )
    assert "followers" not in summary(move_plan(state, "t", None, (NodeId(2),)), None)
