"""Brokers leave all in-sync sets in small steps, where one decision would hold the event loop.

A broker may be in the in-sync sets of ten thousands of partitions. Each step returns the records of
some of them: first the partitions that the brokers lead, because clients wait for their new
leaders. Other decisions happen between the steps, so each step looks at the newest image. Replicas
that join an in-sync set meanwhile are found by the decision that fences or unregisters the brokers
at the end: it scans all partitions again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.election_rules import ElectionRules, election_rules
from riverrun.cluster.partitions.leadership import leave_partition
from riverrun.cluster.partitions.partition_change import LeaderCandidates
from riverrun.metadata.image import Image
from riverrun.model.ids import NodeId, TopicId

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

STEP_RECORDS: Final = 500
"""Records of one step: they are decided, written and replayed in about 5 ms."""
STEP_TOPICS: Final = 50
"""Topics of one step: the image of a topic with a changed partition is built again as a whole."""


def is_large(image: Image) -> bool:
    """Whether the departure of a broker may need more than one step."""
    return sum(len(topic.partitions) for topic in image.topics_by_id.values()) > STEP_RECORDS


class Departure:
    """The departure of some brokers, given with the epochs of their registrations.

    Call ``find`` first, then ``step`` until ``is_done``.
    """

    def __init__(self, epochs: Mapping[NodeId, int]) -> None:
        self._epochs = epochs
        self._led: list[tuple[TopicId, int]] = []
        self._followed: list[tuple[TopicId, int]] = []

    def find(self, image: Image) -> Iterator[None]:
        """Find the partitions, one topic in each step."""
        nodes = tuple(self._epochs)
        for topic in image.topics_by_id.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader in nodes:
                    self._led.append((topic.id, index))
                elif any(node in partition.isr for node in nodes):
                    self._followed.append((topic.id, index))
            yield
        self._led.reverse()
        self._followed.reverse()

    @property
    def is_done(self) -> bool:
        return not self._led and not self._followed

    def remaining(self, image: Image) -> list[NodeId]:
        """The brokers that still have the registration that ends, and are not fenced."""
        return [
            node
            for node, epoch in self._epochs.items()
            if (broker := image.brokers.get(node)) is not None
            and broker.epoch == epoch
            and not broker.is_fenced
        ]

    def step(self, configs: Configs, image: Image) -> list[Record]:
        """The records of the next partitions."""
        nodes = self.remaining(image)
        if not nodes:
            self._led, self._followed = [], []
            return []
        candidates = LeaderCandidates(image, without=nodes)
        rules: dict[TopicId, ElectionRules] = {}
        records: list[Record] = []
        for _ in range(STEP_RECORDS):
            places = self._led or self._followed
            if not places or len(rules) == STEP_TOPICS:
                break
            topic_id, index = places.pop()
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                continue  # It was deleted meanwhile. A topic never has fewer partitions.
            if topic_id not in rules:
                rules[topic_id] = election_rules(configs, image, topic)
            record = leave_partition(topic, index, rules[topic_id], candidates, nodes)
            if record is not None:
                records.append(record)
        return records
