"""Metrics of the coordinators."""

from __future__ import annotations

from collections.abc import Callable

from riverrun.ports.metrics import Metrics


class ShardMetrics:
    """Counters that all shards of one kind share on a node."""

    def __init__(self, metrics: Metrics, *, name: str, topic: str) -> None:
        """``name`` is part of the metrics' names: "group" or "transaction"."""
        self.batches = metrics.counter(
            f"riverrun_{name}_batches_total", f"Batches written to {topic}."
        )
        self.records = metrics.counter(
            f"riverrun_{name}_records_total", f"Records written to {topic}."
        )
        self.stalls = metrics.counter(
            f"riverrun_{name}_stalls_total",
            f"Late wake-ups whose delay was added to the deadlines of all {name}s.",
        )
        self.loading_seconds = metrics.histogram(
            f"riverrun_{name}_loading_seconds", f"Time to load a partition of {topic}."
        )


def declare_group_gauges(
    metrics: Metrics, *, groups: Callable[[], int], offsets: Callable[[], int]
) -> None:
    metrics.gauge("riverrun_groups", "Groups on this node.", groups)
    metrics.gauge("riverrun_group_offsets", "Committed offsets.", offsets)


class ConsumerMetrics:
    """Metrics of groups of the consumer protocol."""

    def __init__(self, metrics: Metrics, *, groups: Callable[[], dict[str, int]]) -> None:
        """``groups`` returns the number of groups by state."""
        self.rebalances = metrics.counter(
            "riverrun_consumer_group_rebalances_total",
            "Rises of the epoch of groups of the consumer protocol.",
        )
        metrics.gauge(
            "riverrun_consumer_groups",
            "Groups of the consumer protocol on this node.",
            lambda: sum(groups().values()),
        )
