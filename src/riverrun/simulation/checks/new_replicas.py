"""Checks that a new replica of a reassignment enters the ISR only with the leader's content.

The copies are read from the disks, without the broker's storage code. Topics that are compacted are
left out, because their copies may differ.
"""

from __future__ import annotations

from collections.abc import Callable

from riverrun.metadata.image import PartitionImage
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.simulation.cluster import SimulatedCluster, data_directory, node_name
from riverrun.simulation.disks.log_reader import intact_batches, logs_on
from riverrun.simulation.failures import SafetyViolation
from riverrun.simulation.world import World

Batch = tuple[int, int, bytes]


class NewReplicaChecker:
    """``changed`` follows the committed states of all partitions, in order."""

    def __init__(
        self,
        world: World,
        cluster: SimulatedCluster,
        *,
        with_bit_rot: Callable[[], list[str]],
        is_compacted: Callable[[str], bool],
    ) -> None:
        """``with_bit_rot`` returns nodes with damage that nobody may have found yet."""
        self._world = world
        self._cluster = cluster
        self._with_bit_rot = with_bit_rot
        self._is_compacted = is_compacted
        self.joined = 0
        """New replicas that were checked."""

    def changed(self, topic: str, index: int, old: PartitionImage, new: PartitionImage) -> None:
        if self._is_compacted(topic):
            return
        joined = [node for node in new.isr if node in old.adding and node not in old.isr]
        if joined and old.leader >= 0:
            for node in joined:
                self._check(topic, index, old.leader, node)

    def _check(self, topic: str, index: int, leader: NodeId, node: NodeId) -> None:
        names = node_name(leader), node_name(node)
        if any(name in self._with_bit_rot() for name in names):
            return
        self.joined += 1
        where = f"{topic}-{index}: new replica {node}"
        held, copied = (self._batches(name, topic, index) for name in names)
        for one, other in zip(held, copied, strict=False):
            if one != other:
                self._fail(f"{where} differs from leader {leader} at offset {one[0]}")
                return
        high_watermark = self._high_watermark(names[0], topic, index)
        end = copied[-1][1] if copied else 0
        is_running = names[1] in self._cluster.brokers
        if high_watermark is not None and is_running and end < high_watermark:
            self._fail(f"{where} ends at {end}, but {high_watermark} is committed")

    def _fail(self, message: str) -> None:
        self._world.fail(SafetyViolation(message))

    def _batches(self, name: str, topic: str, index: int) -> list[Batch]:
        files = self._world.hosts[name].disk.files()
        return intact_batches(logs_on(files, data_directory(name)).get((topic, index), []))

    def _high_watermark(self, name: str, topic: str, index: int) -> int | None:
        """The leader's own, if it runs."""
        broker = self._cluster.brokers.get(name)
        directory = None if broker is None else broker._directory
        if directory is None:
            return None
        log = directory.logs.get(TopicPartition(TopicName(topic), PartitionIndex(index)))
        return None if log is None else int(log.high_watermark)
