"""Plans from an image: a cluster with a joined, a draining and a gone broker."""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.cluster.balance import PartitionLoad, partition_now, planner_layout
from riverrun.cluster.partitions.placement import PlacementState
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.placement.planner.layout import ClusterLayout
from riverrun.placement.planner.plan import Goal, Purpose, make_plan
from riverrun.placement.planner.schedule import next_step
from tests.cluster.fakes import make_configs, replayed
from tests.cluster.states import NAME, P, cluster
from tests.cluster.test_placement import setting


def layout(image: Image, *, gone: tuple[int, ...] = (), factor: int | None = None) -> ClusterLayout:
    return planner_layout(
        make_configs(),
        image,
        PlacementState(),
        loads={(NAME, 0): PartitionLoad(size_bytes=7.0, bytes_in=2.0)},
        gone=tuple(NodeId(node) for node in gone),
        replication_factors={} if factor is None else {NAME: factor},
    )


def moving(image: Image, **changes: tuple[NodeId, ...]) -> Image:
    """The image with the first partition changed."""
    topic = next(iter(image.topics_by_id.values()))
    partitions = (replace(topic.partitions[0], **changes), *topic.partitions[1:])
    changed = replace(topic, partitions=partitions)
    return replace(image, topics_by_id={topic.id: changed}, topics_by_name={topic.name: changed})


FOUR = [P(1, (1, 2, 3)), P(2, (1, 2, 3)), P(3, (1, 2, 3)), P(1, (1, 2, 3))]


def test_layout_has_sizes_leaders_and_in_sync_replicas() -> None:
    found = layout(cluster(P(2, (2, 3)), P(1, (1, 2, 3))))
    assert list(found.replicas) == [0, 1, 2, 0, 1, 2]
    assert list(found.leaders) == [1, 0]
    assert list(found.in_sync) == [2, 3]
    assert list(found.min_in_sync) == [2, 2]
    assert (found.sizes[0], found.bytes_in[0]) == (7.0, 2.0)


def test_joined_broker_takes_its_share() -> None:
    image = cluster(*FOUR, brokers=(1, 2, 3, 4))
    plan = make_plan(layout(image))
    assert plan.replicas_moved == 3
    assert all(move.adding in ((4,), ()) for move in plan.moves)


def test_gone_and_draining_brokers_are_emptied() -> None:
    image = cluster(*FOUR, brokers=(1, 2, 3, 4, 5), fenced=(3,))
    assert make_plan(layout(image), Purpose.REPAIR).moves == (), "a fenced broker may come back"
    plan = make_plan(layout(image, gone=(3,)), Purpose.REPAIR)
    assert {move.goal for move in plan.moves} == {Goal.REPAIR}
    drained = replayed(image, [setting("1", "broker.mode", "decommissioning")])
    plan = make_plan(layout(drained), Purpose.REPAIR)
    assert [(move.removing, move.goal) for move in plan.moves] == [((1,), Goal.DRAIN)] * 4


def test_larger_replication_factor_is_planned() -> None:
    plan = make_plan(layout(cluster(*FOUR, brokers=(1, 2, 3, 4)), factor=4), Purpose.REPAIR)
    assert [move.adding for move in plan.moves] == [(4,)] * 4


def test_partition_in_motion_is_pinned_and_counts_as_moving() -> None:
    image = moving(
        cluster(*FOUR, brokers=(1, 2, 3, 4)),
        replicas=(NodeId(1), NodeId(2), NodeId(4), NodeId(3)),
        adding=(NodeId(4),),
        removing=(NodeId(3),),
    )
    assert list(layout(image).is_pinned) == [1, 0, 0, 0]
    now = partition_now(image, NAME, 0)
    assert now is not None
    assert now.is_moving
    assert now.replicas == (1, 2, 4)
    assert partition_now(image, NAME, 9) is None


def test_plan_continues_from_the_image() -> None:
    image = cluster(*FOUR, brokers=(1, 2, 3, 4))
    plan = make_plan(layout(image))
    step = next_step(plan.moves, lambda topic, number: partition_now(image, topic, number))
    assert step.start
    assert step.done == 0
    first = next(move for move in plan.moves if move.partition == 0)
    done = moving(image, replicas=first.after)
    step = next_step(plan.moves, lambda topic, number: partition_now(done, topic, number))
    assert step.done == 1
    assert all(move.partition != 0 for move in step.start)
