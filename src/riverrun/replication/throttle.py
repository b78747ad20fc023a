"""A rate limit for replicas that catch up, on the side of the leader or of the follower (KIP-73).

It applies only to replicas that the topic names, and only while they are out of sync, lack
committed records and are far behind: a throttle must never delay an acks=all write. One throttle
limits all of them together. Bytes are charged when they were read or appended, because their number
is not known before. They are a debt that shrinks at the current rate, so a new rate takes effect at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition
from riverrun.storage.settings import LogSettings

ALL_REPLICAS: Final = "*"
BURST_SECONDS: Final = 1.0
"""An unused throttle allows the bytes of this time at once."""
CHECK_SECONDS: Final = 1.0
"""A throttled replica checks the rate again after this time: it may have changed."""

PAUSE_SECONDS_MIN: Final = 0.001


def leader_list(settings: LogSettings) -> tuple[str, ...]:
    return settings.leader_throttled_replicas


def follower_list(settings: LogSettings) -> tuple[str, ...]:
    return settings.follower_throttled_replicas


class Throttle:
    """The limit of one node for one side. ``named`` returns a topic's list of that side."""

    __slots__ = ("_as_of", "_debt_bytes", "_named", "_node_id", "_rate")

    def __init__(
        self, node_id: NodeId, rate: int, named: Callable[[LogSettings], tuple[str, ...]]
    ) -> None:
        """``rate`` is in bytes per second."""
        self._node_id = node_id
        self._rate = rate
        self._named = named
        self._debt_bytes = 0.0
        """Negative: bytes that may be spent at once."""
        self._as_of = 0.0

    def configure(self, rate: int, now: float) -> None:
        self._settle(now)
        self._rate = rate

    def applies_to(self, partition: Partition, follower: NodeId) -> bool:
        """Whether the bytes of this follower count. An entry names a partition and this node."""
        named = self._named(partition.log.settings)
        if not named or partition.waits_for(follower):
            return False
        return ALL_REPLICAS in named or f"{partition.name.partition}:{self._node_id}" in named

    def spend(self, count: int, now: float) -> None:
        self._settle(now)
        self._debt_bytes += count

    def pause_seconds(self, now: float) -> float:
        """The time until more may be sent, at most CHECK_SECONDS; 0 if it may be now."""
        self._settle(now)
        if self._debt_bytes < 1:
            return 0.0
        return min(max(self._debt_bytes / max(self._rate, 1), PAUSE_SECONDS_MIN), CHECK_SECONDS)

    def _settle(self, now: float) -> None:
        paid = max(now - self._as_of, 0.0) * self._rate
        self._debt_bytes = max(self._debt_bytes - paid, -BURST_SECONDS * self._rate)
        self._as_of = max(self._as_of, now)
