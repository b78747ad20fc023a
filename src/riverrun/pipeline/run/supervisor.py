"""Keeps the queries of a pipeline running: starts them, observes them and restarts failed ones.

A failed query restarts from its checkpoint after a pause that doubles with each failure. The pause
is reset when a batch completes. An error that only the user can resolve ends the query.
"""

from __future__ import annotations

import time
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_riverrun.cluster.planner import DataLost
from riverrun.model.errors import KafkaError
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.run.context import QueryContext
from riverrun.pipeline.run.failures import (
    error_summary,
    is_missing_path,
    is_permanent,
    transient_errors,
)
from riverrun.pipeline.run.query import SinkQuery
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus, status_of_this_process
from riverrun.pipeline.sources.schemas import NoRecordsYet
from riverrun.ports.aio import Backoff

RESTART_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)
INPUT_POLL_SECONDS = 1.0
TRIGGER_END_SECONDS_MAX = 10.0
TRIGGER_POLL_SECONDS = 0.02
DATA_LOST = DataLost.__name__
DATA_LOST_REMEDY = 'In a pipeline: on_data_loss = "go-on" in the source'
INITIALIZING = "Initializing sources"
"""Spark's status message of a query whose sources are not ready."""


class QuerySupervisor:
    """Supervises the query of one sink."""

    def __init__(self, query: SinkQuery, sink: str, *, is_once: bool) -> None:
        self.query = query
        self.status = QueryStatus(sink=sink)
        self.start_at = 0.0
        """When the query starts next, in seconds of the monotonic clock."""
        self._is_once = is_once
        self._streaming: StreamingQuery | None = None
        self._failures = 0
        """Failures since the last completed batch."""
        self._last_batch: int | None = None

    @property
    def is_over(self) -> bool:
        return self.status.state in ("ended", "failed")

    @property
    def is_started(self) -> bool:
        return self._streaming is not None

    @property
    def is_initializing(self) -> bool:
        return self._streaming is not None and self._streaming.status["message"] == INITIALIZING

    def tick(self, now: float) -> None:
        """Update the status, and start the query when it is time."""
        if self.is_over:
            return
        if self._streaming is None:
            if now >= self.start_at:
                self._start(now)
            return
        # Read before the progress. Otherwise the numbers of the last batch could be missed.
        is_active = self._streaming.isActive
        self._observe(self._streaming)
        if not is_active:
            self._finish(now, self._streaming)

    def refuse_batches(self) -> None:
        """Refuse all batches that start from now on. ``stop`` waits for the current one."""
        self.query.refuse_batches()
        if not self.is_over:
            self.status.state = "ending"

    def stop(self) -> None:
        """Stop the query between two batches, because a batch cut short would be repeated.

        New batches are refused first: Spark would wait for them, and they would wait for us.
        """
        self.refuse_batches()
        try:
            if self._streaming is not None and self._streaming.isActive:
                self.query.wait_for_batch()
                self._wait_for_trigger(self._streaming)
                self._observe(self._streaming)
                self._streaming.stop()
        except (Py4JError, OSError):
            # The signal that stops us may have ended Java too. The checkpoint is consistent.
            if not self.is_over:
                self.status.reason = "Spark ended before the query did"
        self.status = self.snapshot()
        if not self.is_over:
            self.status.state = "ended"
        self.query.publish_positions()

    def snapshot(self) -> QueryStatus:
        """The status with the current counts. Any thread may call it: it needs no Java."""
        counts = self.query.counts
        positions, under_way = counts.positions, counts.under_way
        return replace(
            self.status,
            rows=counts.rows,
            total=counts.total,
            dead_letters=counts.dead_letters,
            positions=None if positions is None else dict(positions),
            current_batch=None if under_way is None else under_way.id,
            current_records=None if under_way is None else under_way.records,
            current_since_ms=None if under_way is None else under_way.since_ms,
        )

    def _start(self, now: float) -> None:
        try:
            self._streaming = self.query.start(is_once=self._is_once)
        except NoRecordsYet as error:
            self._wait_for_input(now, str(error))
        except CannotContinue as error:
            self.status.state, self.status.reason = "failed", str(error)
        except (AnalysisException, ValueError) as error:
            if is_missing_path(error):
                self._wait_for_input(now, error_summary(error))
            else:  # the declaration is wrong, and a restart does not change that
                self._fail(error_summary(error))
        except transient_errors() as error:
            self._schedule_restart(now, error_summary(error))
        else:
            self.status.state = "running"

    def _wait_for_input(self, now: float, reason: str) -> None:
        """With ``--once``, no input means that all input has been processed."""
        self.status.state, self.status.reason = "ended" if self._is_once else "waiting", reason
        self.start_at = now + INPUT_POLL_SECONDS

    def _finish(self, now: float, streaming: StreamingQuery) -> None:
        error = streaming.exception()
        if self.query.fatal is not None:
            self.status.state, self.status.reason = "failed", str(self.query.fatal)
        elif error is not None:
            self._restart_or_fail(now, error_summary(error))
        else:
            self.status.state = "ended"
        self._streaming = None

    def _restart_or_fail(self, now: float, reason: str) -> None:
        """A restart does not bring lost records back, unless the topic was recreated."""
        try:
            is_lost = reason.startswith(DATA_LOST) and not self.query.has_recreated_topics()
        except (KafkaError, OSError):
            is_lost = False  # the next start checks again
        if is_lost:
            self._fail(f"{reason.rstrip('.')}. {DATA_LOST_REMEDY}")
        elif is_permanent(reason):
            self._fail(reason)
        else:
            self._schedule_restart(now, reason)

    def _fail(self, reason: str) -> None:
        self.status.state, self.status.reason = "failed", f"sinks.{self.status.sink}: {reason}"

    def _schedule_restart(self, now: float, reason: str) -> None:
        self.status.state, self.status.reason = "waiting", reason
        self.status.restarts += 1
        self._failures += 1
        self.start_at = now + RESTART_BACKOFF.exact(self._failures)

    def _observe(self, streaming: StreamingQuery) -> None:
        self.status = self.snapshot()
        progress = streaming.lastProgress
        if progress is None:
            return
        self.status.batch_id = progress["batchId"]
        self.status.rows_per_second = float(progress["processedRowsPerSecond"] or 0.0)
        self.status.batch_ms = progress["durationMs"].get("triggerExecution")
        if self._last_batch != progress["batchId"]:
            self._last_batch = progress["batchId"]
            self._failures = 0

    def _wait_for_trigger(self, streaming: StreamingQuery) -> None:
        """Give Spark time to commit the batch in its checkpoint."""
        end = time.monotonic() + TRIGGER_END_SECONDS_MAX
        while streaming.isActive and streaming.status["isTriggerActive"] and time.monotonic() < end:
            time.sleep(TRIGGER_POLL_SECONDS)


class PipelineSupervisor:
    """Supervises all queries of a pipeline."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, *, is_once: bool = False) -> None:
        self._pipeline = pipeline
        self._since_ms = int(time.time() * 1000)
        # Read once, because Java may be gone when the last status is written.
        context = spark.sparkContext
        self._master, self._ui = context.master or "", context.uiWebUrl
        self.queries = [
            QuerySupervisor(
                SinkQuery(QueryContext(spark, pipeline, sink)), sink.name, is_once=is_once
            )
            for sink in pipeline.sinks.values()
        ]

    @property
    def is_over(self) -> bool:
        return all(query.is_over for query in self.queries)

    @property
    def failures(self) -> list[str]:
        states = [query.status for query in self.queries]
        return [status.reason or "" for status in states if status.state == "failed"]

    def tick(self) -> None:
        """Start queries one at a time, and observe those that run.

        Each start launches Python processes that must respond to Spark within ten seconds. Many
        at once would slow each other down.
        """
        now = time.monotonic()
        for query in self.queries:
            if query.is_started or not any(other.is_initializing for other in self.queries):
                query.tick(now)

    def fail(self, reason: str) -> None:
        """End all queries that still run, because Spark is gone."""
        for query in self.queries:
            if not query.is_over:
                query.status.state, query.status.reason = "failed", reason

    def stop(self) -> None:
        for query in self.queries:
            query.refuse_batches()
        for query in self.queries:
            query.stop()

    def status(self) -> PipelineStatus:
        """A snapshot. Any thread may call it, also while another one waits for Spark."""
        queries = [query.snapshot() for query in self.queries]
        return status_of_this_process(
            self._pipeline.name, self._master, queries, ui=self._ui, since_ms=self._since_ms
        )
