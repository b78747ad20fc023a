"""The input of a plan, from what brokers report."""

from __future__ import annotations

from riverrun.admin.balance.cluster_state import (
    BrokerView,
    ClusterView,
    PartitionState,
    layout_of,
)
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.plan import make_plan

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
