"""The replicas of a cluster in flat arrays: the input of a plan.

A million partitions with three replicas take about 80 MB. Brokers are indexes into ``brokers``. A
slot is one replica: partition p has the slots ``starts[p]`` to ``starts[p + 1]``, the preferred
leader first. The partitions of a topic are consecutive.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker

MISSING: Final = -1
"""A slot without a broker, and a partition without a leader."""
IN_SYNC_MAX: Final = 255


class ClusterLayout:
    """Immutable by convention: a plan works on copies."""

    def __init__(self, brokers: Iterable[PlacementBroker]) -> None:
        self.brokers: list[PlacementBroker] = sorted(brokers, key=lambda one: one.id)
        self.index_of: dict[NodeId, int] = {one.id: at for at, one in enumerate(self.brokers)}
        self.topics: list[str] = []
        self.topic_starts = array("i", [0])
        self.topic_of = array("i")
        self.numbers = array("i")
        """The index of each partition in its topic."""
        self.starts = array("i", [0])
        self.partition_of = array("i")
        self.replicas = array("i")
        self.leaders = array("i")
        self.in_sync = bytearray()
        self.min_in_sync = bytearray()
        self.is_pinned = bytearray()
        self.sizes = array("d")
        self.bytes_in = array("d")
        self.bytes_out = array("d")
        self.has_rates = False

    @property
    def partitions(self) -> int:
        return len(self.topic_of)

    def slots(self, partition: int) -> range:
        return range(self.starts[partition], self.starts[partition + 1])

    def replicas_of(self, partition: int) -> array[int]:
        return self.replicas[self.starts[partition] : self.starts[partition + 1]]


class LayoutBuilder:
    """Adds partitions, topic by topic. Replicas on unknown brokers count as gone."""

    def __init__(self, brokers: Iterable[PlacementBroker]) -> None:
        self._layout = ClusterLayout(brokers)

    def add(
        self,
        topic: str,
        number: int,
        replicas: Sequence[NodeId],
        *,
        leader: NodeId | None = None,
        in_sync: int | None = None,
        min_in_sync: int = 1,
        size_bytes: float = 0.0,
        bytes_in: float | None = None,
        bytes_out: float | None = None,
        is_pinned: bool = False,
        replication_factor: int | None = None,
    ) -> None:
        """Add a partition. ``leader`` None means the first replica, ``in_sync`` None means all.

        ``is_pinned``: a reassignment is in progress, so no plan touches the partition. A
        ``replication_factor`` above the number of replicas asks the plan for the missing ones.
        """
        layout = self._layout
        if not layout.topics or layout.topics[-1] != topic:
            layout.topics.append(topic)
            layout.topic_starts.append(layout.topic_starts[-1])
        places = [self._place(node) for node in replicas]
        places += [MISSING] * ((replication_factor or 0) - len(places))
        partition = len(layout.topic_of)
        layout.topic_of.append(len(layout.topics) - 1)
        layout.topic_starts[-1] = partition + 1
        layout.numbers.append(number)
        layout.replicas.extend(places)
        layout.partition_of.extend([partition] * len(places))
        layout.starts.append(len(layout.replicas))
        layout.leaders.append(places[0] if leader is None else layout.index_of.get(leader, MISSING))
        layout.in_sync.append(min(len(replicas) if in_sync is None else in_sync, IN_SYNC_MAX))
        layout.min_in_sync.append(min(min_in_sync, IN_SYNC_MAX))
        layout.is_pinned.append(is_pinned)
        layout.sizes.append(size_bytes)
        layout.has_rates = layout.has_rates or bytes_in is not None
        layout.bytes_in.append(bytes_in or 0.0)
        layout.bytes_out.append(bytes_out or 0.0)

    def _place(self, node: NodeId) -> int:
        layout = self._layout
        found = layout.index_of.get(node)
        if found is None:
            found = layout.index_of[node] = len(layout.brokers)
            layout.brokers.append(PlacementBroker(id=node, availability=Availability.GONE))
        return found

    def build(self) -> ClusterLayout:
        """The layout. If no rates are known, sizes stand in for them."""
        layout = self._layout
        if not layout.has_rates:
            layout.bytes_in = layout.bytes_out = layout.sizes
        return layout
