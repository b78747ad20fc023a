"""The metadata about other brokers that leaders use, and limits and counters of their ISRs.

A fetch counts for a replica only if it carries the epoch of that broker's registration (KIP-903).
Fenced brokers and brokers in controlled shutdown do not join an ISR (KIP-841).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.ids import NodeId
from riverrun.ports.metrics import Counter, Metrics
from riverrun.replication.isr import IsrLimits

if TYPE_CHECKING:
    from riverrun.replication.follower_progress import FollowerProgress
    from riverrun.replication.partition import Partition

    Verify = Callable[[Partition, Sequence[FollowerProgress]], None]

UNREGISTERED = -1


def _no_time() -> float:
    return 0.0


def _ignore(_: Partition) -> None:
    return


def _ignore_copies(_: Partition, __: Sequence[FollowerProgress]) -> None:
    return


class Peers:
    """Shared by all partitions of a node. Without arguments: a node without peers, for tests."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = _no_time,
        image: Callable[[], Image] = Image,
        limits: IsrLimits | None = None,
        are_followers_read: bool = False,
        metrics: Metrics | None = None,
        propose: Callable[[Partition], None] = _ignore,
        verify: Verify | None = None,
    ) -> None:
        """``propose`` is called when a partition has an ISR proposal to send. ``verify`` is called
        with new replicas of a reassignment that can join once their content was verified. Without
        it they need not be verified.
        """
        self.now = now
        self.limits = limits or IsrLimits()
        self.are_followers_read = are_followers_read
        """Consumers may read from followers. Then followers receive a new high watermark at once,
        and not with the next records."""
        self.propose = propose
        self.checked_at = -math.inf
        """When the last check of all led partitions began."""
        self.is_verification_required = verify is not None
        self.verify: Verify = verify or _ignore_copies
        self._image = image
        counted = metrics or Metrics()
        self.shrinks: Counter = counted.counter(
            "riverrun_isr_shrinks_total", "Replicas removed from the ISR of a partition led here."
        )
        self.expands: Counter = counted.counter(
            "riverrun_isr_expands_total", "Replicas added to the ISR of a partition led here."
        )
        self.reassigned_bytes: Counter = counted.counter(
            "riverrun_reassignment_sent_bytes_total",
            "Bytes that this node sent, as leader, to new replicas of a reassignment.",
        )
        self.rejected: Counter = counted.counter(
            "riverrun_isr_proposals_rejected_total", "ISR changes that the controller rejected."
        )

    @property
    def brokers(self) -> Mapping[NodeId, BrokerImage]:
        """The registrations. Images share them until one changes."""
        return self._image().brokers

    def epoch_of(self, node: NodeId) -> int:
        broker = self._image().brokers.get(node)
        return UNREGISTERED if broker is None else broker.epoch

    def may_join(self, node: NodeId, broker_epoch: int) -> bool:
        image = self._image()
        return image.is_active(node) and image.brokers[node].epoch == broker_epoch

    def is_alive(self, node: NodeId) -> bool:
        broker = self._image().brokers.get(node)
        return broker is not None and not broker.is_fenced

    def rack_of(self, node: NodeId) -> str | None:
        broker = self._image().brokers.get(node)
        return None if broker is None else broker.rack
