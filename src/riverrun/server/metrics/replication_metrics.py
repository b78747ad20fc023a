"""Metrics of replication, for the partitions that this node leads.

Lag in bytes is estimated from the mean record size of the log, because bytes are not counted by
offset. Lag in ms is the time since the follower last had all records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from riverrun.ports.metrics import Metrics, Sample
from riverrun.replication.follower_progress import FollowerProgress
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas


def declare_replication_metrics(metrics: Metrics, replicas: Replicas) -> None:
    def count(matches: Callable[[Partition], bool]) -> Callable[[], float]:
        return lambda: sum(
            1 for partition in replicas if partition.is_leader and matches(partition)
        )

    def by_follower(
        read: Callable[[Partition, FollowerProgress], float],
    ) -> Callable[[], Iterator[Sample]]:
        def samples() -> Iterator[Sample]:
            for partition in replicas:
                topic, index = partition.name.topic, str(partition.name.partition)
                for follower in partition.followers.values():
                    labels = {"topic": topic, "partition": index, "follower": str(follower.node)}
                    yield labels, read(partition, follower)

        return samples

    def sizes() -> Iterator[Sample]:
        for partition in replicas:
            if partition.is_leader:
                topic, index = partition.name.topic, str(partition.name.partition)
                yield {"topic": topic, "partition": index}, len(partition.isr)

    metrics.gauges("riverrun_isr_size", "In-sync replicas of a partition led here.", sizes)
    metrics.gauge(
        "riverrun_under_replicated_partitions",
        "Partitions led here with replicas out of sync. New replicas of a reassignment do not "
        "count (KIP-352).",
        count(lambda partition: len(partition.isr) < partition.image.replication_factor),
    )
    metrics.gauge(
        "riverrun_under_min_isr_partitions",
        "Partitions led here that reject acks=all: too few in-sync replicas.",
        count(lambda partition: len(partition.isr) < partition.min_in_sync()),
    )
    metrics.gauge(
        "riverrun_at_min_isr_partitions",
        "Partitions led here with exactly min.insync.replicas in sync.",
        count(lambda partition: len(partition.isr) == partition.min_in_sync()),
    )
    metrics.gauges(
        "riverrun_follower_lag_messages",
        "Records of a led partition that a follower lacks.",
        by_follower(_messages),
    )
    metrics.gauges(
        "riverrun_follower_lag_bytes",
        "Bytes that a follower lacks, estimated from the mean record size.",
        by_follower(_bytes),
    )
    metrics.gauges(
        "riverrun_follower_lag_ms",
        "Time since a follower last had all records; -1 if it never had.",
        by_follower(
            lambda partition, follower: follower.lag_ms(
                partition.log.end_offset, replicas.peers.now()
            )
        ),
    )


def declare_reassignment_metrics(metrics: Metrics, replicas: Replicas) -> None:
    metrics.gauge(
        "riverrun_reassigning_partitions",
        "Partitions led here that are being reassigned.",
        lambda: sum(
            1
            for partition in replicas
            if partition.is_leader and (partition.image.adding or partition.image.removing)
        ),
    )


def _messages(partition: Partition, follower: FollowerProgress) -> float:
    log = partition.log
    return max(log.end_offset - max(follower.end_offset, log.start_offset), 0)


def _bytes(partition: Partition, follower: FollowerProgress) -> float:
    log = partition.log
    records = log.end_offset - log.start_offset
    return _messages(partition, follower) * log.size_bytes / records if records else 0
