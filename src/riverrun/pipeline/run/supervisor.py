"""Keeps the queries of a pipeline running: starts them, watches them, starts failed ones again.

A query that failed is started from its checkpoint after a pause that doubles, and begins small
again once a batch has come through. What only a person can decide ends the query for good.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_riverrun.cluster.planner import DataLost
from riverrun.model.errors import KafkaError
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.run.failures import in_words, is_final, is_missing_files, passing_errors
from riverrun.pipeline.run.query import Handler, NoRecordsYet
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus, of_this_process

PAUSE_SECONDS_MIN = 1.0
PAUSE_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 10.0
SETTLE_EVERY_SECONDS = 0.02
DATA_LOST = DataLost.__name__
LOST_REMEDY = 'In a pipeline: on_data_loss = "go-on" in the source'
INITIALIZING = "Initializing sources"
"""What Spark says of a query whose sources are not there yet."""


@dataclass(slots=True)
class Supervised:
    """One query and how it fares."""

    handler: Handler
    is_once: bool
    status: QueryStatus
    query: StreamingQuery | None = None
    start_at: float = 0.0
    pause_seconds: float = PAUSE_SECONDS_MIN
    _last_batch: int | None = None

    @property
    def is_over(self) -> bool:
        return self.status.state in ("ended", "failed")

    @property
    def is_beginning(self) -> bool:
        return self.query is not None and self.query.status["message"] == INITIALIZING

    def tick(self, now: float) -> None:
        """Look at the query, and start it if it is time."""
        if self.is_over:
            return
        if self.query is None:
            if now >= self.start_at:
                self._start(now)
            return
        is_active = self.query.isActive  # before the numbers, or those of the last batch are missed
        self._observe()
        if not is_active:
            self._finish(now)

    def _start(self, now: float) -> None:
        try:
            self.query = self.handler.start(is_once=self.is_once)
        except NoRecordsYet as error:
            self._wait_for_records(now, str(error))
        except CannotContinue as error:
            self.status.state, self.status.reason = "failed", str(error)
        except (AnalysisException, ValueError) as error:
            if is_missing_files(error):
                self._wait_for_records(now, in_words(error))
            else:  # what is declared does not run, and runs no better a minute later
                self._end(in_words(error))
        except passing_errors() as error:
            self._fail(now, in_words(error))
        else:
            self.status.state = "running"

    def _wait_for_records(self, now: float, reason: str) -> None:
        """All that is there has been processed if there is nothing."""
        self.status.state, self.status.reason = "ended" if self.is_once else "waiting", reason
        self.start_at = now + PAUSE_SECONDS_MIN

    def _end(self, reason: str) -> None:
        self.status.state, self.status.reason = "failed", f"sinks.{self.status.sink}: {reason}"

    def _finish(self, now: float) -> None:
        assert self.query is not None
        error = self.query.exception()
        if self.handler.fatal is not None:
            self.status.state, self.status.reason = "failed", str(self.handler.fatal)
        elif error is not None:
            self._judge(now, in_words(error))
        else:
            self.status.state = "ended"
        self.query = None

    def _judge(self, now: float, reason: str) -> None:
        """Lost records come back by no restart, unless the topic is another one now."""
        try:
            is_lost = reason.startswith(DATA_LOST) and not self.handler.has_topics_made_again()
        except (KafkaError, OSError):
            is_lost = False  # the next start asks again
        if is_lost:
            self._end(f"{reason.rstrip('.')}. {LOST_REMEDY}")
        elif is_final(reason):
            self._end(reason)
        else:
            self._fail(now, reason)

    def _fail(self, now: float, reason: str) -> None:
        self.status.state, self.status.reason = "waiting", reason
        self.status.restarts += 1
        self.start_at = now + self.pause_seconds
        self.pause_seconds = min(self.pause_seconds * 2, PAUSE_SECONDS_MAX)

    def _observe(self) -> None:
        assert self.query is not None
        counts = self.handler.counts
        self.status.rows, self.status.dead_letters = counts.rows, counts.dead_letters
        progress = self.query.lastProgress
        if progress is None:
            return
        self.status.batch_id = progress["batchId"]
        self.status.rows_per_second = float(progress["processedRowsPerSecond"] or 0.0)
        self.status.batch_ms = progress["durationMs"].get("triggerExecution")
        self.status.lags = lags_of(progress["sources"])
        self.status.lag = sum(self.status.lags.values()) if self.status.lags else None
        if self._last_batch != progress["batchId"]:
            self._last_batch = progress["batchId"]
            self.pause_seconds = PAUSE_SECONDS_MIN

    def stop(self) -> None:
        """Between two batches: one that is cut short would be done again for nothing. None begins
        any more, for Spark would wait for it, and it for us.
        """
        self.handler.is_stopping = True
        try:
            if self.query is not None and self.query.isActive:
                with self.handler.busy:
                    pass  # the batch under way has ended
                self._settle(self.query)
                self.query.stop()
        except (Py4JError, OSError):
            # Whoever stopped us may have stopped Java too; the checkpoint is as good.
            self.status.reason = "Spark ended before the query did"
        if not self.is_over:
            self.status.state = "ended"

    def _settle(self, query: StreamingQuery) -> None:
        """Let Spark write down that the batch is done."""
        end = time.monotonic() + SETTLE_SECONDS_MAX
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < end:
            time.sleep(SETTLE_EVERY_SECONDS)


@dataclass(slots=True)
class Supervisor:
    spark: SparkSession
    pipeline: Pipeline
    is_once: bool = False
    since_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    queries: list[Supervised] = field(default_factory=list)
    master: str = field(init=False)
    ui: str | None = field(init=False)

    def __post_init__(self) -> None:
        # Asked once: the last status is told when Java may be gone.
        context = self.spark.sparkContext
        self.master, self.ui = context.master or "", context.uiWebUrl
        self.queries = [
            Supervised(
                handler=Handler(spark=self.spark, pipeline=self.pipeline, sink=sink),
                is_once=self.is_once,
                status=QueryStatus(sink=sink.name),
            )
            for sink in self.pipeline.sinks.values()
        ]

    @property
    def is_over(self) -> bool:
        return all(query.is_over for query in self.queries)

    @property
    def failures(self) -> list[str]:
        states = [query.status for query in self.queries]
        return [status.reason or "" for status in states if status.state == "failed"]

    def tick(self) -> None:
        """Queries begin one after another: each starts Python processes, which Spark gives ten
        seconds to answer, and many at once keep each other from it.
        """
        now = time.monotonic()
        for query in self.queries:
            if query.query is not None or not any(other.is_beginning for other in self.queries):
                query.tick(now)

    def stop(self) -> None:
        for query in self.queries:
            query.stop()

    def status(self) -> PipelineStatus:
        queries = [query.status for query in self.queries]
        return of_this_process(
            self.pipeline.name, self.master, queries, ui=self.ui, since_ms=self.since_ms
        )


def lags_of(sources: list[dict[str, object]]) -> dict[str, int]:
    """By partition what is in the topic and not yet read, from what a query tells of itself."""
    lags: dict[str, int] = {}
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for name, offset in latest.items():
            lags[name] = max(0, offset - end.get(name, 0))
    return lags


def _offsets(told: object) -> dict[str, int]:
    """The offsets of Spark's progress, which may be JSON in a text."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return {}
    if not isinstance(told, dict):
        return {}
    return {
        f"{topic}-{index}": int(offset)
        for topic, rows in told.items()
        if isinstance(rows, dict)
        for index, offset in rows.items()
    }
