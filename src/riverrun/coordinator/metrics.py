"""Metrics of the group coordinator."""

from __future__ import annotations

from collections.abc import Callable

from riverrun.ports.metrics import Metrics


class GroupMetrics:
    """Counters that the shards of a node share, and gauges over all of them."""

    def __init__(
        self, metrics: Metrics, *, groups: Callable[[], int], offsets: Callable[[], int]
    ) -> None:
        self.batches = metrics.counter(
            "riverrun_group_batches_total", "Batches written to __consumer_offsets."
        )
        self.records = metrics.counter(
            "riverrun_group_records_total", "Records written to __consumer_offsets."
        )
        self.stalls = metrics.counter(
            "riverrun_group_stalls_total", "Late wake-ups whose delay was credited to all members."
        )
        self.loading_seconds = metrics.histogram(
            "riverrun_group_loading_seconds", "Time to load a partition of __consumer_offsets."
        )
        metrics.gauge("riverrun_groups", "Groups on this node.", groups)
        metrics.gauge("riverrun_group_offsets", "Committed offsets.", offsets)
