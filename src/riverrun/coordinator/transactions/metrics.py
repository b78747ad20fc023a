"""Metrics of the transaction coordinator."""

from __future__ import annotations

from collections.abc import Callable

from riverrun.ports.metrics import Metrics


class TransactionMetrics:
    """Counters of ended transactions, and gauges over all shards of this node."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        ids: Callable[[], int],
        open_count: Callable[[], int],
        oldest_seconds: Callable[[], float],
    ) -> None:
        self.commits = metrics.counter(
            "riverrun_transaction_commits_total", "Transactions that were committed."
        )
        self.aborts = metrics.counter(
            "riverrun_transaction_aborts_total", "Transactions that were aborted."
        )
        metrics.gauge("riverrun_transactional_ids", "Transactional ids on this node.", ids)
        metrics.gauge(
            "riverrun_transactions_open",
            "Transactions on this node that have begun and are not complete.",
            open_count,
        )
        metrics.gauge(
            "riverrun_transaction_oldest_seconds",
            "Age of the oldest transaction on this node that is not complete.",
            oldest_seconds,
        )
