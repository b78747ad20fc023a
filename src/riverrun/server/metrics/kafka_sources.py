"""Values that only `/metrics/kafka` serves: they are derived, or too many for each scrape.

Kafka reports some values as rates. They are computed from samples that the scrapes themselves take,
over the last minute, so nothing runs between scrapes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from riverrun.ports.metrics import Metrics, Sample
from riverrun.replication.partition import Partition
from riverrun.server.services import BrokerServices

WINDOW_SECONDS: Final = 60.0
SAMPLE_SECONDS_MIN: Final = 1.0
PROCESS_IO: Final = Path("/proc/self/io")


class RecentRate:
    """How fast a total has grown for each second, over the last minute of scrapes."""

    def __init__(self, read: Callable[[], float], now: Callable[[], float]) -> None:
        self._read = read
        self._now = now
        self._samples: deque[tuple[float, float]] = deque([(now(), read())])
        """At most one for each second of the window, oldest first."""

    def __call__(self) -> float:
        now, total = self._now(), self._read()
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now - WINDOW_SECONDS:
            samples.popleft()
        began, first = samples[0]
        if now - samples[-1][0] >= SAMPLE_SECONDS_MIN:
            samples.append((now, total))
        return (total - first) / (now - began) if now > began else 0.0


def declare_broker_sources(metrics: Metrics, services: BrokerServices) -> None:
    _declare_partitions(metrics, services)
    _declare_groups_and_topics(metrics, services)
    _declare_process(metrics, services.clock.monotonic)
    _declare_quorum_rates(metrics, services)


def _declare_partitions(metrics: Metrics, services: BrokerServices) -> None:
    def led(name: str, doc: str, read: Callable[[Partition], float]) -> None:
        def samples() -> Iterator[Sample]:
            for partition in services.replicas:
                if partition.is_leader:
                    index = str(partition.name.partition)
                    yield {"topic": partition.name.topic, "partition": index}, read(partition)

        metrics.unlisted_gauges(name, doc, samples)

    led("partition_current_offset", "High watermark.", lambda one: one.log.high_watermark)
    led("partition_oldest_offset", "First offset.", lambda one: one.log.start_offset)
    led("partition_replicas", "Replicas.", lambda one: one.image.replication_factor)
    led("partition_leader", "Leader.", lambda one: one.image.leader)
    led(
        "partition_under_replicated",
        "1 if replicas are out of sync.",
        lambda one: len(one.isr) < one.image.replication_factor,
    )
    led(
        "partition_leader_is_preferred",
        "1 if the preferred replica leads.",
        lambda one: one.image.leader == one.replicas[0],
    )
    led(
        "partition_at_min_isr",
        "1 if exactly min.insync.replicas are in sync.",
        lambda one: len(one.isr) == one.min_in_sync(),
    )
    led(
        "partition_under_min_isr",
        "1 if fewer than min.insync.replicas are in sync.",
        lambda one: len(one.isr) < one.min_in_sync(),
    )


def _declare_groups_and_topics(metrics: Metrics, services: BrokerServices) -> None:
    limits = services.settings.metrics

    def committed() -> Iterator[Sample]:
        for one in islice(services.groups.committed_offsets(), limits.group_lags_max):
            labels = {"group": one.group, "topic": one.topic, "partition": str(one.partition)}
            yield labels, one.offset

    def members() -> Iterator[Sample]:
        for group, count in islice(services.groups.loaded_groups(), limits.group_lags_max):
            yield {"group": group}, count

    def partitions() -> Iterator[Sample]:
        if services.metadata.is_active:
            topics = services.metadata.current.topics_by_name
            for name, topic in islice(topics.items(), limits.topics_max):
                yield {"topic": name}, len(topic.partitions)

    metrics.unlisted_gauges("group_committed_offset", "Committed offset of a group.", committed)
    metrics.unlisted_gauges("group_members", "Members of a group.", members)
    metrics.unlisted_gauges("topic_partitions", "Partitions of a topic.", partitions)


def _declare_process(metrics: Metrics, now: Callable[[], float]) -> None:
    # A scrape runs on the thread of the event loop, so this is the loop's own CPU time.
    busy = RecentRate(time.thread_time, now)

    def disk(field: str) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            if PROCESS_IO.exists():  # Linux only
                rows = dict(line.split(": ") for line in PROCESS_IO.read_text().splitlines())
                yield {}, int(rows[field])

        return samples

    metrics.unlisted_gauges(
        "loop_idle_ratio",
        "Share of the last minute in which the event loop was idle.",
        lambda: (({}, max(0.0, 1.0 - busy())),),
    )
    metrics.unlisted_gauges("process_disk_read_bytes", "Read from disks.", disk("read_bytes"))
    metrics.unlisted_gauges("process_disk_write_bytes", "Written to disks.", disk("write_bytes"))


def _declare_quorum_rates(metrics: Metrics, services: BrokerServices) -> None:
    metadata, now = services.metadata, services.clock.monotonic
    growth = RecentRate(lambda: metadata.end_offset, now)
    waits = metrics.histogram(
        "riverrun_controller_queue_seconds",
        "Time from a decision until it is committed and its response is sent.",
    )
    waited = RecentRate(lambda: waits.total, now)
    decided = RecentRate(lambda: sum(waits.counts), now)

    def latency_ms() -> float:
        seconds, count = waited(), decided()
        return 1000 * seconds / count if count else 0.0

    metrics.unlisted_gauges(
        "quorum_append_rate",
        "Metadata records appended as leader, for each second.",
        lambda: (({}, growth() if metadata.is_active else 0.0),),
    )
    metrics.unlisted_gauges(
        "quorum_fetch_rate",
        "Metadata records fetched, for each second.",
        lambda: (({}, 0.0 if metadata.is_active else growth()),),
    )
    metrics.unlisted_gauges(
        "commit_latency_ms",
        "Mean time from a decision of the controller to its commit.",
        lambda: (({}, latency_ms()),),
    )
