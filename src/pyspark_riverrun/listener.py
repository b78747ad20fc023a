"""How far behind a query is: a listener that users add in one line.

``spark.streams.addListener(LagListener())`` logs the lag after each batch; ``LagListener(see)``
hands it to a function instead. Spark's own progress has the offsets of our source but no metrics of
it, and lag is what can be computed from them.
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
class Lag:
    """After one batch of a query."""

    query: str
    batch_id: int
    rows: int
    rows_per_second: float
    batch_ms: int
    behind: Mapping[TopicPartition, int]
    """Offsets that were there and are not read yet, for each partition of our sources."""

    @property
    def total(self) -> int:
        return sum(self.behind.values())


class LagListener(StreamingQueryListener):
    """Tells the lag after each batch."""

    def __init__(self, see: Callable[[Lag], None] | None = None) -> None:
        self._see = see or _log

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        behind: dict[TopicPartition, int] = {}
        for source in progress.sources:
            behind |= lag_between(source.endOffset, source.latestOffset)
        duration = progress.durationMs or {}
        self._see(
            Lag(
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
    """From the offsets in a progress; empty for those of another kind of source."""
    try:
        reached, there = from_json(json.loads(end or "")), from_json(json.loads(latest or ""))
    except ValueError:
        return {}
    return {at: max(0, offset - reached.get(at, 0)) for at, offset in sorted(there.items())}


def _log(lag: Lag) -> None:
    most = max(lag.behind.items(), key=lambda one: one[1], default=None)
    worst = f", most in {most[0]} ({most[1]})" if most and most[1] else ""
    logger.info("%s batch %d: lag %d%s", lag.query, lag.batch_id, lag.total, worst)
