"""A rate limit for replicas that catch up (KIP-73).

It applies only to replicas that the topic names, and only while they are out of sync: a throttle
must never delay an acks=all write.
"""

from __future__ import annotations

from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition

ALL_REPLICAS = "*"
BURST_SECONDS = 1.0


class Throttle:
    """Bytes are charged after they arrive, because their number is not known before."""

    __slots__ = ("_free_at", "_node_id", "rate")

    def __init__(self, node_id: NodeId, rate: int) -> None:
        self._node_id = node_id
        self.rate = rate
        """Bytes per second."""
        self._free_at = 0.0

    def applies_to(self, partition: Partition) -> bool:
        named = partition.log.settings.follower_throttled_replicas
        if not named or self._node_id in partition.isr:
            return False
        return ALL_REPLICAS in named or f"{partition.name.partition}:{self._node_id}" in named

    def spend(self, count: int, now: float) -> None:
        begin = max(self._free_at, now - BURST_SECONDS)
        self._free_at = begin + count / max(self.rate, 1)

    def free_at(self) -> float:
        """The time from which more may be fetched."""
        return self._free_at
