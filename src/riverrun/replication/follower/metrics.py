"""What is counted about following, and where it is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from riverrun.ports.metrics import Counter, Metrics, Sample
from riverrun.replication.follower.followed_partition import FollowedPartition, FollowState


class Counters:
    """Shared by all fetchers of a node."""

    __slots__ = ("bytes", "corrupt", "errors", "requests", "truncations")

    def __init__(self) -> None:
        self.requests = Counter()
        self.bytes = Counter()
        self.errors = Counter()
        self.corrupt = Counter()
        self.truncations = Counter()


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
        "riverrun_replica_fetch_errors_total", "Partitions whose fetch failed for a while"
    )
    counters.corrupt = metrics.counter(
        "riverrun_replica_fetch_corrupt_total", "Damaged batches that leaders sent"
    )
    counters.truncations = metrics.counter(
        "riverrun_replica_truncations_total", "Logs that were cut to agree with their leader"
    )

    def lags() -> Iterable[Sample]:
        for each in following():
            name = each.partition.name
            yield {"topic": str(name.topic), "partition": str(name.partition)}, each.lag

    def in_state(state: FollowState) -> float:
        return sum(1 for each in following() if each.state is state)

    metrics.gauges(
        "riverrun_replica_fetch_lag_records",
        "Committed records that this follower lacks, as far as it knows",
        lags,
    )
    for state in FollowState:
        metrics.gauge(
            "riverrun_replica_fetch_partitions",
            "Partitions that this node follows, by state",
            partial(in_state, state),
            state=state.value,
        )
