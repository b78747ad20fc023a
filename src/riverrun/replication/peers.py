"""What the leaders of this node know of other nodes: who is registered, and who may be in sync.

A fetch counts for a replica only when it bears the epoch of that broker's registration (KIP-903);
fenced brokers and those that shut down do not join (KIP-841). Both come from the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId
from riverrun.ports.metrics import Counter, Metrics
from riverrun.replication.isr import IsrLimits

if TYPE_CHECKING:
    from riverrun.replication.partition import Partition

UNREGISTERED = -1


def _no_time() -> float:
    return 0.0


def _nobody(_: Partition) -> None:
    return


class Peers:
    """Shared by all partitions of a node. Without arguments: a node that knows nobody."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = _no_time,
        image: Callable[[], Image] = Image,
        limits: IsrLimits | None = None,
        are_followers_read: bool = False,
        metrics: Metrics | None = None,
        propose: Callable[[Partition], None] = _nobody,
    ) -> None:
        """``propose`` is called when a partition has an ISR proposal to send."""
        self.now = now
        self.limits = limits or IsrLimits()
        self.are_followers_read = are_followers_read
        """Then they are told the high watermark at once, and not with the next records."""
        self.propose = propose
        self._image = image
        counted = metrics or Metrics()
        self.shrinks: Counter = counted.counter(
            "riverrun_isr_shrinks_total", "Replicas taken out of an ISR by their leader here."
        )
        self.expands: Counter = counted.counter(
            "riverrun_isr_expands_total", "Replicas taken into an ISR by their leader here."
        )
        self.rejected: Counter = counted.counter(
            "riverrun_isr_proposals_rejected_total", "ISR changes that the controller refused."
        )

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
