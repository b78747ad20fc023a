"""Tracks which nodes lost data and have not recovered it, and decides what may be damaged next.

The promises cover the loss of any one node. So a disk is destroyed only while no other node is
damaged. If a second node loses power before the first has recovered, and acknowledgements do not
wait for a sync, the checker is informed of the records that may be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from riverrun.simulation.checks.client_checker import ClientChecker, PartitionKey
from riverrun.simulation.cluster import SimulatedCluster, data_directory
from riverrun.simulation.disks.log_reader import durable_ends
from riverrun.simulation.faults.schedule import ON_CLUSTERS, FaultKind
from riverrun.simulation.world import World

VOTERS_MIN = 3
"""With fewer voters, the loss of one voter's log loses the quorum permanently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damage:
    metadata_offset: int
    is_destroyed: bool
    is_hidden: bool


class DamageBudget:
    def __init__(self, world: World, cluster: SimulatedCluster, checker: ClientChecker) -> None:
        self._world = world
        self._cluster = cluster
        self._checker = checker
        self._damages: dict[str, _Damage] = {}
        for name in cluster.names:
            world.host(name).disk.before_damage = lambda name=name: self._lost(name)  # type: ignore[misc]

    @property
    def with_bit_rot(self) -> list[str]:
        """Nodes with a flipped bit that may not have been detected yet."""
        return [name for name, damage in self._damages.items() if damage.is_hidden]

    @property
    def is_repaired(self) -> bool:
        self._remove_repaired()
        return not self._damages and self._cluster.unsettled_reason() is None

    def may_damage(self, name: str, kind: FaultKind) -> bool:
        if kind in ON_CLUSTERS:
            if not self.is_repaired:
                return False
            if len(self._cluster.voters()) < VOTERS_MIN or self._cluster.removed_voters:
                return False
            self._note(name, kind)
            if kind is not FaultKind.BIT_ROT:
                self._cluster.metadata.reset_node(name)
            return True
        if self._checker.is_synced_before_ack:
            return True
        self._remove_repaired()
        others = [damage for other, damage in self._damages.items() if other != name]
        return not any(damage.is_destroyed for damage in others)

    def _note(self, name: str, kind: FaultKind) -> None:
        self._damages[name] = _Damage(
            metadata_offset=int(self._cluster.metadata.latest.offset),
            is_destroyed=kind in ON_CLUSTERS,
            is_hidden=kind is FaultKind.BIT_ROT,
        )

    def _lost(self, name: str) -> None:
        """Note that a disk loses unsynced data, by power loss or a failed sync."""
        self._remove_repaired()
        is_last_copy = any(other != name for other in self._damages)
        if not is_last_copy and len(self._cluster.names) > 1:
            if name not in self._damages:
                self._note(name, FaultKind.POWER_LOSS)
            return
        if name not in self._damages:
            self._note(name, FaultKind.POWER_LOSS)
        self._checker.damaged(self._durable_ends())

    def _durable_ends(self) -> dict[PartitionKey, int]:
        """The end offset that is durable on every replica, so any next leader has it."""
        kept = {
            int(settings.node_id): durable_ends(
                self._world.hosts[name].disk.durable_files(), data_directory(name)
            )
            for name, settings in self._cluster.settings.items()
        }
        return {
            (topic.name, index): min(
                kept[int(node)].get((topic.name, index), 0)
                for node in one.replicas
                if node not in one.adding or node in one.isr
            )
            for topic in self._cluster.metadata.latest.topics_by_name.values()
            for index, one in enumerate(topic.partitions)
        }

    def _remove_repaired(self) -> None:
        if not self._damages or self._cluster.unsettled_reason() is not None:
            return
        latest = self._cluster.metadata.latest
        for name, damage in list(self._damages.items()):
            registered = latest.brokers.get(self._cluster.settings[name].node_id)
            is_new = registered is not None and registered.epoch > damage.metadata_offset
            if is_new and not damage.is_hidden:
                del self._damages[name]
