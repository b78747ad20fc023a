"""Which brokers clients may see: those that live, and those that died or returned a moment ago."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import BrokerImage, Image
from riverrun.model.ids import NodeId
from riverrun.ports.clock import Clock

LISTED_AFTER_FENCING_SECONDS: Final = 10.0
"""How long a fenced broker stays listed; about the session timeout of a broker in Kafka."""
LOST_SECONDS: Final = 0.5
"""How long a leader is in doubt after the connection to it broke."""


class BrokerVisibility:
    """When brokers were fenced or registered again, and when connections to leaders broke, as this
    node sees it."""

    def __init__(self, clock: Clock, node_id: NodeId) -> None:
        self._clock = clock
        self._node_id = node_id
        self._seen: Mapping[NodeId, BrokerImage] = {}
        self._fenced_at: dict[NodeId, float] = {}
        self._lost_at: dict[NodeId, float] = {}

    def listed_brokers(self, image: Image, listener: str, now: float) -> dict[NodeId, BrokerImage]:
        """The live brokers, this one, and those that were fenced within the last seconds.

        A leader that dies is fenced and replaced by one record. librdkafka (2.16) drops a broker
        that is not listed any more, together with partitions that it is about to move to their new
        leader. It looks for that leader again only after a second. If the broker coordinated a
        group, a transaction that commits offsets may wait for minutes (librdkafka issue 5511). So
        the list shrinks later, and a broker that serves clients before it is unfenced lists itself.
        """
        for broker_id, since in list(self._fenced_at.items()):
            if now - since > LISTED_AFTER_FENCING_SECONDS:
                del self._fenced_at[broker_id]
        return {
            broker.id: broker
            for broker in image.brokers.values()
            if listener in broker.endpoints
            and (not broker.is_fenced or broker.id == self._node_id or broker.id in self._fenced_at)
        }

    def published(self, _: Delta | None, image: Image) -> None:
        """A subscriber of metadata images. A node that no client has asked yet must know, too, when
        a broker died: clients turn to such a node because of that."""
        if self._seen is not image.brokers:
            self._note_fenced(image.brokers, self._clock.monotonic())

    def leader_lost(self, leader: NodeId, now: float) -> None:
        """The connection to a broker that leads partitions broke."""
        self._lost_at[leader] = now

    def lost_leaders(self, now: float) -> Mapping[NodeId, float]:
        """Brokers that may be dead, though the controller has not fenced them yet."""
        if self._lost_at:
            self._lost_at = {
                leader: since
                for leader, since in self._lost_at.items()
                if now - since < LOST_SECONDS
            }
        return self._lost_at

    def _note_fenced(self, brokers: Mapping[NodeId, BrokerImage], now: float) -> None:
        before, self._seen = self._seen, brokers
        fenced_at: dict[NodeId, float] = {}
        for broker in brokers.values():
            last = before.get(broker.id)
            if not broker.is_fenced or last is None:
                continue
            # A broker is fenced while it starts. Its registration shows that it lives.
            if not last.is_fenced or last.epoch != broker.epoch:
                fenced_at[broker.id] = now
            elif broker.id in self._fenced_at:
                fenced_at[broker.id] = self._fenced_at[broker.id]
        self._fenced_at = fenced_at


def live_brokers(image: Image, listener: str) -> dict[NodeId, BrokerImage]:
    """Unfenced brokers that clients of a listener can reach."""
    return {
        broker.id: broker
        for broker in image.brokers.values()
        if not broker.is_fenced and listener in broker.endpoints
    }
