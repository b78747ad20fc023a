"""Encoded responses that many clients request: ApiVersions and Metadata.

Images share the object of a topic until it changes, and a topic's part of a Metadata response is
cached by version and listener as long as that object is the same. So a cluster of ten thousand
partitions is encoded once, not for every client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from riverrun.metadata.image import Image, TopicImage
from riverrun.model.ids import NodeId, TopicName

VARIANTS_MAX: Final = 64
"""Versions times listeners that are cached."""

Variant = tuple[int, str]
"""Version and listener: all that makes two responses about one topic differ."""


class EncodedTopics(Struct):
    """The encoded topics of one variant."""

    by_name: dict[TopicName, tuple[TopicImage, bytes]] = field(default_factory=dict)
    whole: tuple[Image, tuple[NodeId, ...], bytes] | None = None
    """The response about all topics, with its image and the brokers that it lists."""

    def get(self, topic: TopicImage) -> bytes | None:
        cached = self.by_name.get(topic.name)
        return cached[1] if cached is not None and cached[0] is topic else None

    def put(self, topic: TopicImage, encoded: bytes, image: Image) -> None:
        if len(self.by_name) > 2 * len(image.topics_by_name) + 100:
            self.by_name.clear()  # most of these topics are deleted
        self.by_name[topic.name] = (topic, encoded)


class ResponseCache:
    """The encoded responses of one node."""

    def __init__(self) -> None:
        self._api_versions: dict[Variant, tuple[Image, bytes]] = {}
        self._topics: dict[Variant, EncodedTopics] = {}
        self._brokers: object = None

    def api_versions(
        self, version: int, listener: str, image: Image, encode: Callable[[], bytes]
    ) -> bytes:
        cached = self._api_versions.get((version, listener))
        if cached is None or cached[0] is not image:
            cached = (image, encode())
            self._api_versions[version, listener] = cached
        return cached[1]

    def topics(self, version: int, listener: str, image: Image) -> EncodedTopics:
        """The topics of one variant. Any change of the brokers may change every partition."""
        if self._brokers is not image.brokers or len(self._topics) > VARIANTS_MAX:
            self._brokers = image.brokers
            self._topics.clear()
        return self._topics.setdefault((version, listener), EncodedTopics())
