"""A limit on what replicas that catch up may take from the disk and the network (KIP-73).

Only replicas that the topic names are slowed down, and only while they are not in sync: a throttle
must never be the reason why an acknowledged write waits.
"""

from __future__ import annotations

from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition

ALL_REPLICAS = "*"
BURST_SECONDS = 1.0


class Throttle:
    """Bytes are paid for after they came, since nobody knows before how many they are."""

    __slots__ = ("_free_at", "_node_id", "rate")

    def __init__(self, node_id: NodeId, rate: int) -> None:
        self._node_id = node_id
        self.rate = rate
        """Bytes a second."""
        self._free_at = 0.0

    def concerns(self, partition: Partition) -> bool:
        named = partition.log.settings.follower_throttled_replicas
        if not named or self._node_id in partition.isr:
            return False
        return ALL_REPLICAS in named or f"{partition.name.partition}:{self._node_id}" in named

    def spend(self, count: int, now: float) -> None:
        begin = max(self._free_at, now - BURST_SECONDS)
        self._free_at = begin + count / max(self.rate, 1)

    def free_at(self) -> float:
        """When more may be fetched."""
        return self._free_at
