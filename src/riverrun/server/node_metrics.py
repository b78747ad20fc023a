"""Numbers of the node as a whole, read from its services when somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from riverrun.ports.metrics import Metrics, Sample
from riverrun.replication.partition import Partition
from riverrun.server.replication_metrics import declare_replication_metrics
from riverrun.server.services import BrokerServices


def declare_metrics(metrics: Metrics, services: BrokerServices) -> None:
    replicas = services.replicas
    declare_replication_metrics(metrics, replicas)

    def by_partition(read: Callable[[Partition], float]) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for partition in replicas:
                topic, index = partition.name.topic, str(partition.name.partition)
                yield {"topic": topic, "partition": index}, read(partition)

        return samples

    metrics.gauge("riverrun_partitions", "Replicas on this node.", lambda: sum(1 for _ in replicas))
    metrics.gauge(
        "riverrun_leaders", "Partitions that this node leads.",
        lambda: sum(1 for partition in replicas if partition.is_leader),
    )  # fmt: skip
    metrics.gauges(
        "riverrun_log_end_offset", "Next offset to be written.",
        by_partition(lambda partition: partition.log.end_offset),
    )  # fmt: skip
    metrics.gauges(
        "riverrun_log_start_offset", "First offset that is kept.",
        by_partition(lambda partition: partition.log.start_offset),
    )  # fmt: skip
    metrics.gauges(
        "riverrun_high_watermark", "First offset that readers do not see.",
        by_partition(lambda partition: partition.log.high_watermark),
    )  # fmt: skip
    metrics.gauges(
        "riverrun_log_size_bytes", "Bytes of the segments.",
        by_partition(lambda partition: partition.log.size_bytes),
    )  # fmt: skip
    metrics.gauge(
        "riverrun_waiting_produces", "Batches that wait to be committed.",
        lambda: sum(partition.waiting_produces for partition in replicas),
    )  # fmt: skip
    metrics.gauge(
        "riverrun_waiting_fetches", "Partitions of fetches that wait for records.",
        lambda: sum(partition.waiting_fetches for partition in replicas),
    )  # fmt: skip
    metrics.gauge(
        "riverrun_fetch_sessions", "Incremental fetch sessions.",
        lambda: len(services.fetch_sessions.consumers),
    )  # fmt: skip
    metrics.gauge(
        "riverrun_metadata_offset", "Offset of the newest metadata image.",
        lambda: services.metadata.current.offset,
    )  # fmt: skip
    metrics.gauge(
        "riverrun_log_directory_online", "1 as long as the data directory can be written.",
        lambda: 0 if services.logs.is_offline else 1,
    )  # fmt: skip
