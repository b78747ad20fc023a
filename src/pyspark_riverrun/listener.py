"""Reports how far a streaming query is behind.

A Python data source cannot add metrics to Spark's progress. But the progress contains the offsets
of the source, and the lag follows from them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pyspark_riverrun.offsets import from_json
from riverrun.model.ids import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLag:
    """The lag of a query after one batch."""

    query: str
    """Name of the query, or its id if it has no name."""
    batch_id: int
    rows: int
    rows_per_second: float
    batch_ms: int
    behind: Mapping[TopicPartition, int]
    """Unread offsets by partition, over all riverrun sources of the query."""

    @property
    def total(self) -> int:
        """Unread offsets of all partitions."""
        return sum(self.behind.values())


class LagListener(StreamingQueryListener):
    """Reports the lag after each batch to a function; by default, to the log.

        spark.streams.addListener(LagListener())
        spark.streams.addListener(LagListener(lambda lag: print(lag.query, lag.total)))

    It sees all streaming queries of the session.
    """

    def __init__(self, report: Callable[[QueryLag], None] | None = None) -> None:
        self._report = report or _log

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        behind: dict[TopicPartition, int] = {}
        for source in progress.sources:
            behind |= lag_between(source.endOffset, source.latestOffset)
        duration = progress.durationMs or {}
        self._report(
            QueryLag(
                query=progress.name or str(progress.id),
                batch_id=progress.batchId,
                rows=progress.numInputRows,
                rows_per_second=progress.processedRowsPerSecond,
                batch_ms=int(duration.get("triggerExecution", 0)),
                behind=behind,
            )
        )

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


def lag_between(end: str | None, latest: str | None) -> dict[TopicPartition, int]:
    """Lag by partition, from the offsets in a progress; empty for other kinds of sources."""
    try:
        reached, available = from_json(json.loads(end or "")), from_json(json.loads(latest or ""))
    except ValueError:
        return {}
    return {at: max(0, offset - reached.get(at, 0)) for at, offset in sorted(available.items())}


def _log(lag: QueryLag) -> None:
    most = max(lag.behind.items(), key=lambda one: one[1], default=None)
    worst = f", most in {most[0]} ({most[1]})" if most and most[1] else ""
    logger.info("%s batch %d: lag %d%s", lag.query, lag.batch_id, lag.total, worst)
