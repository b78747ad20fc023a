"""The difference between two images that are not connected by records: a snapshot was installed.

Subscribers see one delta from the old image to the new one, as if the log had produced it. Parts
that are equal come from the old image, because subscribers compare by identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image, TopicImage
from riverrun.model.ids import TopicId, TopicName

K = TypeVar("K")
V = TypeVar("V")

SLICE_TOPICS_MAX: Final = 100


class Difference:
    """Iterate ``steps`` to the end; then ``delta`` leads from the old image to ``image``."""

    def __init__(self, old: Image, new: Image) -> None:
        self.delta = Delta(old)
        self.image = new

    def steps(self) -> Iterator[None]:
        old, new, delta = self.delta.image, self.image, self.delta
        topics: dict[TopicId, TopicImage] = {}
        for place, (topic_id, topic) in enumerate(new.topics_by_id.items()):
            topics[topic_id] = self._topic(topic)
            if place % SLICE_TOPICS_MAX == SLICE_TOPICS_MAX - 1:
                yield
        for topic_id, topic in old.topics_by_id.items():
            if topic_id not in topics:
                delta.deleted_topics[topic_id] = topic
        yield
        names: dict[TopicName, TopicImage] = {
            name: topics[topic.id] for name, topic in new.topics_by_name.items()
        }
        delta.changed_brokers.update(_changed(old.brokers, new.brokers))
        delta.changed_controllers.update(_changed(old.controllers, new.controllers))
        delta.changed_configs.update(_changed(old.configs, new.configs))
        delta.changed_features.update(_changed(old.features, new.features))
        self.image = replace(new, topics_by_id=topics, topics_by_name=names)

    def _topic(self, topic: TopicImage) -> TopicImage:
        before = self.delta.image.topics_by_id.get(topic.id)
        if before == topic:
            return before
        self.delta.changed_topics[topic.id] = None
        if before is None:
            return topic
        known = before.partitions
        partitions = tuple(
            known[index] if index < len(known) and known[index] == partition else partition
            for index, partition in enumerate(topic.partitions)
        )
        return replace(topic, partitions=partitions)


def _changed(old: Mapping[K, V], new: Mapping[K, V]) -> dict[K, None]:
    """Keys that are new, changed or removed."""
    changed = {key: None for key, value in new.items() if old.get(key) != value}
    changed.update({key: None for key in old if key not in new})
    return changed
