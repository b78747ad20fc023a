"""Answers that many clients ask for, kept as bytes: ApiVersions and Metadata.

A topic's part of a Metadata answer is kept by version and listener for as long as its image is the
same object, which images share until the topic changes; so a cluster of ten thousand partitions is
written once and not for every client. Nothing here is more than a cache: the answers come from
``server/requests``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from riverrun.metadata.image import BrokerImage, Image, TopicImage
from riverrun.model.ids import NodeId, TopicName

KINDS_MAX: Final = 64
"""Versions times listeners that are kept; more begin anew."""

LISTED_AFTER_FENCING_SECONDS: Final = 10.0
"""How long clients still hear of a broker that was fenced; about Kafka's session of a broker."""

LOST_SECONDS: Final = 0.5
"""How long a leader whose connection broke is in doubt."""

Kind = tuple[int, str]
"""Version and listener: what else makes two answers about one topic differ."""


class TopicAnswers(Struct):
    """The written topics of one kind."""

    by_name: dict[TopicName, tuple[TopicImage, bytes]] = field(default_factory=dict)
    whole: tuple[Image, tuple[NodeId, ...], bytes] | None = None
    """An answer about all topics, the image that it describes and the brokers that it lists."""

    def get(self, topic: TopicImage) -> bytes | None:
        kept = self.by_name.get(topic.name)
        return kept[1] if kept is not None and kept[0] is topic else None

    def keep(self, topic: TopicImage, written: bytes, image: Image) -> None:
        if len(self.by_name) > 2 * len(image.topics_by_name) + 100:
            self.by_name.clear()  # most of them are topics that are gone
        self.by_name[topic.name] = (topic, written)


class Answers:
    """The kept answers of one node."""

    def __init__(self) -> None:
        self._api_versions: dict[Kind, tuple[Image, bytes]] = {}
        self._topics: dict[Kind, TopicAnswers] = {}
        self._brokers: object = None
        self._seen: Mapping[NodeId, BrokerImage] = {}
        self._fenced_at: dict[NodeId, float] = {}
        self._lost_at: dict[NodeId, float] = {}

    def api_versions(
        self, version: int, listener: str, image: Image, write: Callable[[], bytes]
    ) -> bytes:
        kept = self._api_versions.get((version, listener))
        if kept is None or kept[0] is not image:
            kept = (image, write())
            self._api_versions[version, listener] = kept
        return kept[1]

    def topics(self, version: int, listener: str, image: Image) -> TopicAnswers:
        """Which brokers live decides about every partition, so a change of them ends all."""
        if self._brokers is not image.brokers or len(self._topics) > KINDS_MAX:
            self._brokers = image.brokers
            self._topics.clear()
        return self._topics.setdefault((version, listener), TopicAnswers())

    def listed_brokers(self, image: Image, listener: str, now: float) -> dict[NodeId, BrokerImage]:
        """The live ones, and those that were fenced a moment ago.

        A leader that dies is fenced and replaced by one record. librdkafka (2.16) drops a broker
        that is not listed any more together with the partitions that it is just about to move to
        their new leader, and looks for that again after a second. So the list changes later.
        """
        if self._seen is not image.brokers:
            self._note_fenced(image.brokers, now)
        live = live_brokers(image, listener)
        for broker_id, since in list(self._fenced_at.items()):
            if now - since > LISTED_AFTER_FENCING_SECONDS:
                del self._fenced_at[broker_id]
            elif listener in image.brokers[broker_id].endpoints:
                live[broker_id] = image.brokers[broker_id]
        return live

    def leader_lost(self, leader: NodeId, now: float) -> None:
        """The connection to a broker that leads partitions has just broken."""
        self._lost_at[leader] = now

    def lost_leaders(self, now: float) -> Mapping[NodeId, float]:
        """Brokers that may just have died, which the controller is about to find out."""
        if self._lost_at:
            self._lost_at = {
                leader: since
                for leader, since in self._lost_at.items()
                if now - since < LOST_SECONDS
            }
        return self._lost_at

    def _note_fenced(self, brokers: Mapping[NodeId, BrokerImage], now: float) -> None:
        before, self._seen = self._seen, brokers
        self._fenced_at = {
            broker.id: self._fenced_at.get(broker.id, now)
            for broker in brokers.values()
            if broker.is_fenced
            and (
                broker.id in self._fenced_at
                or (broker.id in before and not before[broker.id].is_fenced)
            )
        }


def live_brokers(image: Image, listener: str) -> dict[NodeId, BrokerImage]:
    """Brokers that clients of a listener may be sent to."""
    return {
        broker.id: broker
        for broker in image.brokers.values()
        if not broker.is_fenced and listener in broker.endpoints
    }
