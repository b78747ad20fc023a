"""Metrics of followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from riverrun.ports.metrics import Counter, Metrics, Sample
from riverrun.replication.follower.followed_partition import FollowedPartition, FollowState


class Counters:
    """Shared by all fetchers of a node."""

    __slots__ = ("bytes", "corrupt", "errors", "reassigned", "requests", "truncations")

    def __init__(self) -> None:
        self.requests = Counter()
        self.bytes = Counter()
        self.errors = Counter()
        self.corrupt = Counter()
        self.truncations = Counter()
        self.reassigned = Counter()


def declare(
    metrics: Metrics, counters: Counters, following: Callable[[], Iterable[FollowedPartition]]
) -> None:
    counters.requests = metrics.counter(
        "riverrun_replica_fetch_requests_total", "Fetches that this node sent to leaders"
    )
    counters.bytes = metrics.counter(
        "riverrun_replica_fetch_bytes_total", "Bytes that this node appended as a follower"
    )
    counters.errors = metrics.counter(
        "riverrun_replica_fetch_errors_total",
        "Fetch errors of single partitions, each followed by a back-off",
    )
    counters.corrupt = metrics.counter(
        "riverrun_replica_fetch_corrupt_total", "Corrupt batches received from leaders"
    )
    counters.truncations = metrics.counter(
        "riverrun_replica_truncations_total", "Logs truncated to agree with their leader"
    )
    counters.reassigned = metrics.counter(
        "riverrun_reassignment_received_bytes_total",
        "Bytes that this node appended as a new replica of a reassignment",
    )

    def lags() -> Iterable[Sample]:
        for each in following():
            name = each.partition.name
            yield {"topic": str(name.topic), "partition": str(name.partition)}, each.lag

    def in_state(state: FollowState) -> float:
        return sum(1 for each in following() if each.state is state)

    metrics.gauges(
        "riverrun_replica_fetch_lag_records",
        "Committed records that this follower lacks, by the last known high watermark",
        lags,
    )
    for state in FollowState:
        metrics.gauge(
            "riverrun_replica_fetch_partitions",
            "Partitions that this node follows, by state",
            partial(in_state, state),
            state=state.value,
        )
