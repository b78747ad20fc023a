"""The inputs of the planner from the image: the layout of a plan, and the state of its moves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.election_rules import min_insync_replicas
from riverrun.cluster.partitions.placement import (
    PlacementState,
    placement_broker,
    placement_settings,
)
from riverrun.metadata.image import NO_LEADER, Image, PartitionImage, TopicImage
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.placement.brokers import Availability
from riverrun.placement.planner.layout import ClusterLayout, LayoutBuilder
from riverrun.placement.planner.schedule import PartitionNow


class PartitionLoad(Struct, frozen=True, kw_only=True):
    """Measured size and rates of one partition; None where unknown."""

    size_bytes: float = 0.0
    bytes_in: float | None = None
    bytes_out: float | None = None


PartitionLoads = Mapping[tuple[TopicName, int], PartitionLoad]
_UNKNOWN = PartitionLoad()


def planner_layout(
    configs: Configs,
    image: Image,
    state: PlacementState,
    *,
    loads: PartitionLoads,
    gone: Collection[NodeId] = (),
    replication_factors: Mapping[TopicName, int] | None = None,
) -> ClusterLayout:
    """The cluster as a plan sees it, in one go. ``replication_factors`` asks for more replicas of
    some topics."""
    builder = layout_builder(configs, image, state, gone=gone)
    factors = replication_factors or {}
    for topic in image.topics_by_name.values():
        factor = factors.get(topic.name)
        add_partitions(builder, image, topic, loads, replication_factor=factor)
    return builder.build()


def layout_builder(
    configs: Configs, image: Image, state: PlacementState, *, gone: Collection[NodeId] = ()
) -> LayoutBuilder:
    """A layout with the brokers. ``gone`` are fenced ones whose replicas are to be replaced."""
    state.totals.update(image)
    defaults = placement_settings(configs, image)
    brokers = [
        placement_broker(image, broker, defaults, state) for broker in image.brokers.values()
    ]
    return LayoutBuilder(
        replace(one, availability=Availability.GONE) if one.id in gone else one for one in brokers
    )


def add_partitions(
    builder: LayoutBuilder,
    image: Image,
    topic: TopicImage,
    loads: PartitionLoads,
    *,
    start: int = 0,
    count: int | None = None,
    replication_factor: int | None = None,
) -> None:
    """Add some partitions of a topic. Those that are being reassigned are pinned."""
    minimum = min_insync_replicas(image, topic.name)
    end = len(topic.partitions) if count is None else start + count
    for number, partition in enumerate(topic.partitions[start:end], start=start):
        load = loads.get((topic.name, number), _UNKNOWN)
        builder.add(
            topic.name,
            number,
            partition.replicas,
            leader=partition.leader,
            in_sync=len(partition.isr),
            min_in_sync=partition.min_in_sync(minimum),
            size_bytes=load.size_bytes,
            bytes_in=load.bytes_in,
            bytes_out=load.bytes_out,
            is_pinned=_is_moving(partition),
            replication_factor=replication_factor,
        )


def partition_now(image: Image, topic: str, partition: int) -> PartitionNow | None:
    """A partition as the schedule of moves sees it; None if it does not exist."""
    found = image.partition(TopicName(topic), PartitionIndex(partition))
    if found is None:
        return None
    return PartitionNow(
        replicas=tuple(node for node in found.replicas if node not in found.removing),
        leader=None if found.leader == NO_LEADER else found.leader,
        is_moving=_is_moving(found),
    )


def _is_moving(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)
