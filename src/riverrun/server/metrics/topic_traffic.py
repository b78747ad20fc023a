"""Traffic of clients by topic: integers that requests add to, once per batch.

The number of topics is limited, because each is a label value that Prometheus must store. Topics
beyond the limit share one entry. The entry of a topic is dropped with the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from riverrun.ports.metrics import Metrics, Sample

OTHER: Final = "(other)"
"""The label of all topics beyond the limit. It is not a valid name of a topic."""


class TopicTraffic(Struct):
    """Counters of one topic on this node."""

    produce_requests: int = 0
    produce_failures: int = 0
    records_in: int = 0
    bytes_in: int = 0
    fetch_requests: int = 0
    fetch_failures: int = 0
    bytes_out: int = 0


class TopicsTraffic(dict[str, TopicTraffic]):
    """The counters of each topic. A dict, because every batch looks up its topic; missing entries
    are added."""

    def __init__(self, metrics: Metrics, *, topics_max: int) -> None:
        super().__init__()
        self._topics_max = topics_max
        self._other = TopicTraffic()
        self.fetch_seconds = metrics.histogram(
            "riverrun_consumer_fetch_seconds",
            "Time from a consumer's fetch to its response, without the wait for new records.",
        )
        self._declare(metrics)

    def __missing__(self, topic: str) -> TopicTraffic:
        if len(self) >= self._topics_max:
            return self._other
        added = self[topic] = TopicTraffic()
        return added

    def topic_deleted(self, topic: str) -> None:
        self.pop(topic, None)

    def _declare(self, metrics: Metrics) -> None:
        def by_topic(name: str, doc: str, read: Callable[[TopicTraffic], int]) -> None:
            metrics.counters(name, doc, lambda: self._samples(read))

        by_topic(
            "riverrun_topic_records_in_total",
            "Records appended by producers.",
            lambda traffic: traffic.records_in,
        )
        by_topic(
            "riverrun_topic_bytes_in_total",
            "Bytes of batches appended by producers.",
            lambda traffic: traffic.bytes_in,
        )
        by_topic(
            "riverrun_topic_bytes_out_total",
            "Bytes of batches sent to consumers.",
            lambda traffic: traffic.bytes_out,
        )
        by_topic(
            "riverrun_topic_produce_requests_total",
            "Batches appended by producers: one for each partition of a Produce request.",
            lambda traffic: traffic.produce_requests,
        )
        by_topic(
            "riverrun_topic_produce_failures_total",
            "Batches of producers that were refused by a replica on this node.",
            lambda traffic: traffic.produce_failures,
        )
        by_topic(
            "riverrun_topic_fetch_requests_total",
            "Partitions of Fetch responses to consumers that had records.",
            lambda traffic: traffic.fetch_requests,
        )
        by_topic(
            "riverrun_topic_fetch_failures_total",
            "Partitions of Fetch responses to consumers with an error, of replicas on this node.",
            lambda traffic: traffic.fetch_failures,
        )

    def all_topics(self) -> Iterator[tuple[str, TopicTraffic]]:
        """Topics with their counters. Those beyond the limit are one entry."""
        yield from self.items()
        if self._other != TopicTraffic():
            yield OTHER, self._other

    def _samples(self, read: Callable[[TopicTraffic], int]) -> Iterator[Sample]:
        for topic, traffic in self.all_topics():
            yield {"topic": topic}, read(traffic)
