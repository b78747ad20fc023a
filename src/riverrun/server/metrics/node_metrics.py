"""Metrics of the broker, computed when they are read."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from riverrun import __version__
from riverrun.model.settings import SECOND_MS
from riverrun.ports.metrics import Metrics, Sample
from riverrun.replication.partition import Partition
from riverrun.server.metrics.kafka_sources import declare_broker_sources
from riverrun.server.metrics.replication_metrics import (
    declare_reassignment_metrics,
    declare_replication_metrics,
)
from riverrun.server.services import BrokerServices


def declare_build(metrics: Metrics) -> None:
    """Of every node, also of one that is a controller only."""
    metrics.gauge(
        "riverrun_build_info",
        "Always 1; the labels name the versions of riverrun and Python.",
        lambda: 1,
        version=__version__,
        python=platform.python_version(),
    )


def declare_metrics(metrics: Metrics, services: BrokerServices) -> None:
    replicas = services.replicas
    declare_replication_metrics(metrics, replicas)
    declare_reassignment_metrics(metrics, replicas)
    declare_broker_sources(metrics, services)

    def by_partition(name: str, description: str, read: Callable[[Partition], float]) -> None:
        def samples() -> Iterator[Sample]:
            for partition in replicas:
                topic, index = partition.name.topic, str(partition.name.partition)
                yield {"topic": topic, "partition": index}, read(partition)

        metrics.gauges(name, description, samples)

    def total(name: str, description: str, count: Callable[[Partition], float]) -> None:
        metrics.gauge(name, description, lambda: sum(map(count, replicas)))

    total("riverrun_partitions", "Replicas on this node.", lambda _: 1)
    total("riverrun_leaders", "Partitions that this node leads.", lambda p: p.is_leader)
    by_partition(
        "riverrun_log_end_offset", "Offset of the next record.", lambda p: p.log.end_offset
    )
    by_partition(
        "riverrun_log_start_offset", "First offset of the log.", lambda p: p.log.start_offset
    )
    by_partition(
        "riverrun_high_watermark",
        "First offset that consumers cannot read yet.",
        lambda p: p.log.high_watermark,
    )
    by_partition("riverrun_log_size_bytes", "Size of the segments.", lambda p: p.log.size_bytes)
    total(
        "riverrun_waiting_produces",
        "Batches waiting to be committed.",
        lambda p: p.waiting_produces,
    )
    total(
        "riverrun_waiting_fetches",
        "Partitions of fetches waiting for records.",
        lambda p: p.waiting_fetches,
    )
    metrics.gauge(
        "riverrun_fetch_sessions",
        "Incremental fetch sessions.",
        lambda: len(services.fetch_sessions.consumers),
    )
    _declare_host(metrics, services)


def _declare_host(metrics: Metrics, services: BrokerServices) -> None:
    metrics.gauge(
        "riverrun_metadata_offset",
        "Offset of the newest metadata image.",
        lambda: services.metadata.current.offset,
    )
    metrics.gauge(
        "riverrun_log_directory_online",
        "1 if the data directory is writable, else 0.",
        lambda: 0 if services.logs.is_offline else 1,
    )
    metrics.gauge(
        "riverrun_disk_size_bytes",
        "Size of the disk with the data directory.",
        lambda: services.logs.space().total_bytes,
    )
    metrics.gauge(
        "riverrun_disk_free_bytes",
        "Space on the disk with the data directory that this node may use.",
        lambda: services.logs.space().usable_bytes,
    )
    metrics.gauge(
        "riverrun_clock_seconds",
        "Wall-clock time of this node, in seconds since 1970.",
        lambda: services.clock.now_ms() / SECOND_MS,
    )
