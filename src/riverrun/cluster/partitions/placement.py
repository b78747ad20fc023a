"""Placement of the replicas of new partitions, from the image.

The decisions are in ``riverrun.placement``, which knows no image. Here are its inputs: brokers with
their racks, availability, capacities and counts of replicas and leaders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from riverrun.cluster.brokers.modes import is_emptied
from riverrun.cluster.configs.node_configs import CLUSTER, Configs
from riverrun.metadata.image import BrokerImage, ConfigType, Image, PartitionImage, TopicImage
from riverrun.model.ids import NodeId, TopicId
from riverrun.model.settings import SettingError
from riverrun.placement.brokers import (
    Availability,
    BrokerLoad,
    PlacementBroker,
    PlacementPolicy,
)
from riverrun.placement.new_partitions import place
from riverrun.placement.settings import PlacementSettings
from riverrun.ports.randomness import Randomness

SEEDS = 2**32


class ReplicaTotals:
    """Replicas and preferred leaders of each broker, kept up to date from image to image.

    Images share unchanged topics, so an update costs a comparison per topic and a count per changed
    partition. Soft state: a new one counts everything once.
    """

    def __init__(self) -> None:
        self._topics: Mapping[TopicId, TopicImage] = {}
        self._replicas: dict[NodeId, int] = {}
        self._leaders: dict[NodeId, int] = {}

    def update(self, image: Image) -> None:
        before, after = self._topics, image.topics_by_id
        if before is after:
            return
        for topic_id, topic in after.items():
            old = before.get(topic_id)
            if old is not topic:
                self._replace(old.partitions if old is not None else (), topic.partitions)
        for topic_id, topic in before.items():
            if topic_id not in after:
                self._replace(topic.partitions, ())
        self._topics = after

    def replicas(self, node: NodeId) -> int:
        return self._replicas.get(node, 0)

    def leaders(self, node: NodeId) -> int:
        """Partitions whose preferred leader this is."""
        return self._leaders.get(node, 0)

    def _replace(self, old: Sequence[PartitionImage], new: Sequence[PartitionImage]) -> None:
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else None
            after = new[index] if index < len(new) else None
            if before is after:
                continue
            if before is not None:
                self._count(before, -1)
            if after is not None:
                self._count(after, 1)

    def _count(self, partition: PartitionImage, step: int) -> None:
        for node in partition.replicas:
            if node not in partition.removing:
                self._replicas[node] = self._replicas.get(node, 0) + step
        leader = partition.replicas[0]
        self._leaders[leader] = self._leaders.get(leader, 0) + step


class PlacementState:
    """What the active controller knows besides the image: soft state, empty at first."""

    def __init__(self) -> None:
        self.totals = ReplicaTotals()
        self.loads: Mapping[NodeId, BrokerLoad] = {}
        """The last measurement of each broker."""


class NewReplicas:
    """Places the partitions of one decision. Each placement counts for the next one."""

    def __init__(
        self,
        configs: Configs,
        image: Image,
        randomness: Randomness,
        state: PlacementState | None = None,
    ) -> None:
        self._configs = configs
        self._image = image
        self._randomness = randomness
        self._state = state if state is not None else PlacementState()
        self._settings = placement_settings(configs, image)
        self._brokers: dict[NodeId, PlacementBroker] | None = None

    def place(
        self, *, partitions: int, replicas: int, existing: Sequence[Sequence[NodeId]] = ()
    ) -> list[tuple[NodeId, ...]]:
        """The replicas of each new partition, the preferred leader first."""
        placement = place(
            list(self._known().values()),
            partitions=partitions,
            replicas=replicas,
            policy=PlacementPolicy(self._settings.policy),
            seed=self._randomness.below(SEEDS),
            existing=existing,
        )
        self.count(placement.assignments)
        return placement.assignments

    def count(self, assignments: Iterable[Sequence[NodeId]]) -> None:
        """Count partitions that this decision creates."""
        brokers = self._known()
        for nodes in assignments:
            for at, node in enumerate(nodes):
                one = brokers.get(node)
                if one is not None:
                    leads = one.leaders + (at == 0)
                    brokers[node] = replace(one, replicas=one.replicas + 1, leaders=leads)

    def _known(self) -> dict[NodeId, PlacementBroker]:
        if self._brokers is None:
            self._state.totals.update(self._image)
            self._brokers = {
                broker.id: placement_broker(self._image, broker, self._settings, self._state)
                for broker in self._image.brokers.values()
            }
        return self._brokers


def placement_settings(configs: Configs, image: Image) -> PlacementSettings:
    """The settings of the cluster: from this node's file, changed at run time."""
    static = PlacementSettings.from_texts(configs.given)
    return _changed(static, image.config(ConfigType.BROKER, CLUSTER))


def placement_broker(
    image: Image,
    broker: BrokerImage,
    defaults: PlacementSettings,
    state: PlacementState,
) -> PlacementBroker:
    """A registered broker as placement sees it."""
    settings = _changed(defaults, image.config(ConfigType.BROKER, str(broker.id)))
    measured = state.loads.get(broker.id)
    return PlacementBroker(
        id=broker.id,
        rack=broker.rack,
        availability=availability(image, broker),
        replicas=state.totals.replicas(broker.id),
        leaders=state.totals.leaders(broker.id),
        weight=settings.weight,
        load=None if measured is None else settings.with_capacities(measured),
    )


def availability(image: Image, broker: BrokerImage) -> Availability:
    """A broker in controlled shutdown counts as fenced."""
    if is_emptied(image, broker.id):
        return Availability.DRAINING
    if is_cordoned(broker):
        return Availability.CORDONED
    return Availability.ACTIVE if image.is_active(broker.id) else Availability.FENCED


def is_cordoned(broker: BrokerImage) -> bool:
    """Whether all directories of a broker are cordoned (KIP-1066)."""
    cordoned = broker.cordoned_directories or ()
    return bool(broker.directories) and all(one in cordoned for one in broker.directories)


def _changed(settings: PlacementSettings, texts: Mapping[str, str]) -> PlacementSettings:
    """Invalid values are refused when they are set; an older version may have stored one."""
    try:
        return settings.changed(texts) if texts else settings
    except SettingError:
        return settings
