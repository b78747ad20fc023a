"""Starts Spark and supervises the queries of a pipeline, in a thread of its own.

The main thread handles signals and shows the status meanwhile (``foreground``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.errors import DeclarationError
from riverrun.pipeline.run import supervisor as supervision
from riverrun.pipeline.run.failures import error_summary
from riverrun.pipeline.run.session import SPARK_GONE, close_session
from riverrun.pipeline.run.sql_check import check_pipeline
from riverrun.pipeline.run.status import PipelineStatus
from riverrun.pipeline.run.worker_thread import WorkerThread

POLL_SECONDS = 0.2
SIGNAL_SECONDS = 1.0
SPARK_LOST = "Spark's Java process has ended; run the pipeline again to continue"
CANNOT_START = "Spark cannot start"
INVALID = "the SQL is invalid; `riverrun pipeline validate` names the problems"


class PipelineDriver:
    """After ``start``, the main thread may call everything else."""

    def __init__(
        self,
        pipeline: Pipeline,
        open_session: Callable[[], SparkSession],
        starting: PipelineStatus,
        *,
        is_once: bool,
    ) -> None:
        self._pipeline = pipeline
        self._open_session = open_session
        self._starting = starting
        self._is_once = is_once
        self._supervisor: supervision.PipelineSupervisor | None = None
        self._is_stopping = threading.Event()
        self._is_paused = threading.Event()
        self._start_failure: str | None = None
        self.invalid: DeclarationError | None = None
        """Problems of the SQL, found before the first query started."""
        self._thread = WorkerThread(self._run, "pipeline")

    def start(self) -> None:
        self._thread.start()

    @property
    def is_starting(self) -> bool:
        """Whether no query has started, so that nothing needs to be finished."""
        return self._supervisor is None and not self._thread.is_over

    @property
    def failures(self) -> list[str]:
        """The reasons of permanent failures."""
        if self._supervisor is not None:
            return list(dict.fromkeys(self._supervisor.failures))
        return [] if self._start_failure is None else [self._start_failure]

    def stop(self) -> None:
        """Ask for the end after the current batches. Returns at once."""
        self._is_stopping.set()

    def pause(self) -> None:
        """Stop the queries after the current batches, and wait for ``resume``. With ``--once``
        this ends the run. Returns at once."""
        if self._is_once:
            self.stop()
        else:
            self._is_paused.set()

    def resume(self) -> None:
        """Start the queries again. Returns at once."""
        self._is_paused.clear()

    @property
    def is_over(self) -> bool:
        """Raises the error of a bug."""
        if self._thread.is_over:
            self._thread.result()
            return True
        return False

    def status(self) -> PipelineStatus:
        starting, supervisor = self._starting, self._supervisor
        if supervisor is not None:
            return replace(
                supervisor.status(),
                log=starting.log,
                bootstrap=starting.bootstrap,
                is_paused=self._is_paused.is_set(),
            )
        reason = self._start_failure or (None if self.invalid is None else INVALID)
        if reason is None:
            return replace(starting, now_ms=int(time.time() * 1000))
        queries = [replace(query, state="failed", reason=reason) for query in starting.queries]
        return replace(starting, queries=queries)

    def _run(self) -> None:
        try:
            spark = self._open_session()
        except (PySparkException, Py4JError, RuntimeError, OSError) as error:
            text = f"{CANNOT_START}: {error_summary(error)}\n  Its log is {self._starting.log}."
            self._start_failure = f"{self._pipeline.name}: {text}"
            return
        try:
            check_pipeline(spark, self._pipeline)
            self._supervise(spark)
            while self._waits_for_resume():
                self._supervise(spark)
        except DeclarationError as error:
            self.invalid = error
        except SPARK_GONE:
            self._start_failure = f"{self._pipeline.name}: {SPARK_LOST}"
        finally:
            close_session(spark)

    def _waits_for_resume(self) -> bool:
        """While the console has stopped the queries. Returns whether to start them again."""
        if not self._is_paused.is_set():
            return False
        while self._is_paused.is_set():
            if self._is_stopping.wait(POLL_SECONDS):
                return False
        return not self._is_stopping.is_set()

    def _supervise(self, spark: SparkSession) -> None:
        self._supervisor = None
        supervisor = supervision.PipelineSupervisor(spark, self._pipeline, is_once=self._is_once)
        self._supervisor = supervisor
        try:
            while not supervisor.is_over and not self._must_end:
                supervisor.tick()
                self._is_stopping.wait(POLL_SECONDS)
        except SPARK_GONE:
            # A signal to the process group also ends Java, which is no failure. The main thread
            # receives it at about the same time.
            if not self._is_stopping.wait(SIGNAL_SECONDS):
                supervisor.fail(f"{self._pipeline.name}: {SPARK_LOST}")
        finally:
            supervisor.stop()

    @property
    def _must_end(self) -> bool:
        return self._is_stopping.is_set() or self._is_paused.is_set()
