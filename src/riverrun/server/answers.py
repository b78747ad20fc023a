"""Answers that many clients ask for, kept as bytes: ApiVersions and Metadata.

A topic's part of a Metadata answer is kept by version and listener for as long as its image is the
same object, which images share until the topic changes; so a cluster of ten thousand partitions is
written once and not for every client. Nothing here is more than a cache: the answers come from
``server/requests``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from riverrun.metadata.image import BrokerImage, Image, TopicImage
from riverrun.model.dataclasses import dataclass, field
from riverrun.model.ids import NodeId, TopicName

KINDS_MAX: Final = 64
"""Versions times listeners that are kept; more begin anew."""

Kind = tuple[int, str]
"""Version and listener: what else makes two answers about one topic differ."""


@dataclass(slots=True)
class TopicAnswers:
    """The written topics of one kind."""

    by_name: dict[TopicName, tuple[TopicImage, bytes]] = field(default_factory=dict)
    whole: tuple[Image, bytes] | None = None

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


def live_brokers(image: Image, listener: str) -> dict[NodeId, BrokerImage]:
    """Brokers that clients of a listener may be sent to."""
    return {
        broker.id: broker
        for broker in image.brokers.values()
        if not broker.is_fenced and listener in broker.endpoints
    }
