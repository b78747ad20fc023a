"""The main thread of a run: signals, the stop request, the status file and the display.

A first signal ends the run after the current batches. A second one ends it at once, which is as
safe as a crash: the next run repeats the batch, and tables skip what they have.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from riverrun.cli.support.options import FAILED, USAGE
from riverrun.pipeline.declaration.model import Pipeline
from riverrun.pipeline.run import session
from riverrun.pipeline.run.cluster_watch import ClusterWatch
from riverrun.pipeline.run.display import Display
from riverrun.pipeline.run.driver import PipelineDriver
from riverrun.pipeline.run.publishing import PipelineCommands, StatusPublisher
from riverrun.pipeline.run.spark_log import NAME, SparkLog
from riverrun.pipeline.run.status import (
    clear_stop,
    is_stop_requested,
    run_lock,
    starting_status,
    write_status,
)

POLL_SECONDS = 0.2
SAME_SIGNAL_SECONDS = {signal.SIGINT: 0.1, signal.SIGTERM: 0.5}
"""Signals within this time count as one: timeout(1) signals the process and its group. People press
Ctrl-C twice in a fifth of a second."""
ENDING = "ending after this batch; Ctrl-C again ends at once"
ENDING_EARLY = "ending as soon as Spark has started; Ctrl-C ends at once"
CUT_SHORT = "ended in the middle of a batch, which the next run repeats"


class StopSignals:
    """The signals received so far. ``wait`` returns early when one arrives."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._first_at: float | None = None
        self._has_news = threading.Event()
        self.number: int | None = None
        """The last signal."""
        self.is_repeated = False

    def receive(self, number: int, _frame: object = None) -> None:
        """The handler: it does nothing that could interfere with the interrupted code."""
        now = self._now()
        if self._first_at is None:
            self._first_at = now
        elif now - self._first_at > SAME_SIGNAL_SECONDS[signal.Signals(number)]:
            self.is_repeated = True
        self.number = number
        self._has_news.set()

    def wait(self, seconds: float) -> None:
        self._has_news.wait(seconds)
        self._has_news.clear()


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Collect SIGINT and SIGTERM, and restore the previous handlers at the end."""
    received = StopSignals()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, received.receive) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True)
class PipelineOutcome:
    code: int
    """The exit code of the command."""
    messages: list[str]
    """The reasons of failures."""


def run_pipeline(
    pipeline: Pipeline,
    master: str,
    *,
    is_once: bool,
    ui_port: int,
    display: Display,
) -> PipelineOutcome:
    """Run until all queries end or a stop is requested. Raises AlreadyRunning.

    A second signal ends the process.
    """
    with (
        run_lock(pipeline.state),
        SparkLog(pipeline.state / NAME) as log,
        stop_signals() as signals,
    ):
        clear_stop(pipeline.state)
        starting = starting_status(
            pipeline.name,
            master,
            list(pipeline.sinks),
            log=str(log.path),
            bootstrap=pipeline.bootstrap,
        )
        open_session = partial(session.open_session, pipeline, master, ui_port, log.path)
        driver = PipelineDriver(pipeline, open_session, starting, is_once=is_once)
        commands = PipelineCommands(stop=driver.pause, start=driver.resume)
        with (
            display,
            ClusterWatch(pipeline) as watch,
            StatusPublisher(pipeline, commands) as publisher,
        ):
            run = ForegroundRun(pipeline, driver, display, watch, publisher, signals, log)
            write_status(pipeline.state, starting)
            is_complete = run.until_over()
            clear_stop(pipeline.state)
            if not is_complete:
                display.close()
                exit_now(128 + (signals.number or signal.SIGINT))
    return outcome_of(driver)


class ForegroundRun:
    def __init__(
        self,
        pipeline: Pipeline,
        driver: PipelineDriver,
        display: Display,
        watch: ClusterWatch,
        publisher: StatusPublisher,
        signals: StopSignals,
        log: SparkLog,
    ) -> None:
        self._pipeline = pipeline
        self._driver = driver
        self._display = display
        self._watch = watch
        self._publisher = publisher
        self._signals = signals
        self._log = log
        self._is_ending = False

    def until_over(self) -> bool:
        """Returns whether the run has ended by itself, and not at once by a signal.

        The last status always says that the run has ended; otherwise it would look alive.
        """
        self._driver.start()
        try:
            while not self._driver.is_over:
                if self._must_end_now():
                    return False
                now = self._watch.adjusted(self._driver.status())
                write_status(self._pipeline.state, now)
                self._publisher.offer(now)
                self._display.show(now)
                self._log.limit()
                self._signals.wait(POLL_SECONDS)
            return True
        finally:
            self._write_last()

    def _must_end_now(self) -> bool:
        """React to signals, to the stop request, and to the end of our reader in a pipe."""
        is_asked = self._signals.number is not None or is_stop_requested(self._pipeline.state)
        if not is_asked and not self._display.is_closed:
            return False
        if self._signals.is_repeated or (self._signals.number and self._driver.is_starting):
            return True
        if not self._is_ending:
            self._is_ending = True
            self._display.announce(ENDING_EARLY if self._driver.is_starting else ENDING)
            self._driver.stop()
        return False

    def _write_last(self) -> None:
        last = self._watch.adjusted(self._driver.status())
        last.has_ended = True
        for query in last.queries:
            if query.state not in ("ended", "failed"):
                query.state = "ended"
                query.reason = None if query.current_batch is None else CUT_SHORT
            query.current_batch = query.current_records = query.current_since_ms = None
        write_status(self._pipeline.state, last)
        self._publisher.offer(last)
        self._display.show(last, is_last=True)


def outcome_of(driver: PipelineDriver) -> PipelineOutcome:
    if driver.invalid is not None:
        return PipelineOutcome(USAGE, [str(driver.invalid)])
    return PipelineOutcome(FAILED if driver.failures else 0, driver.failures)


def exit_now(code: int) -> NoReturn:
    """End without waiting for threads that are inside Java. Java ends with its standard input."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
