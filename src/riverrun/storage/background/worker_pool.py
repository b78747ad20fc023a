"""Worker processes of a node: started for a job, kept for the next one, ended when idle.

Starting Python takes longer than compacting a small log, so a process is kept for a while. At most
one is idle. Jobs that run at the same time (a compaction and a scrub) have a process each, so that
neither waits for the other and each can be aborted by killing its process.

A job fails when its process ends. The caller decides whether to try again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from threading import Lock
from typing import IO, Final, Generic, TypeVar, cast

from msgspec import Struct

from riverrun.model.settings import MiB
from riverrun.ports.metrics import Metrics
from riverrun.storage.background.frames import JobEnd, JobRequest, receive, send
from riverrun.storage.cleaning.compaction import (
    CompactionAborted,
    CompactionResult,
    CompactionTask,
)
from riverrun.storage.digests.digest_task import DigestBucket, DigestTask
from riverrun.storage.scrubbing.scrub import ScrubResult, ScrubTask

END_SECONDS_MAX: Final = 5.0
"""For a worker whose input is closed to end by itself, before it is killed."""

Result = TypeVar("Result", CompactionResult, ScrubResult, DigestBucket)


class WorkerCrashed(Exception):
    """The worker process ended during a job: it was killed, or it failed."""


class WorkerLimits(Struct, frozen=True, kw_only=True):
    idle_seconds_max: float = 60.0
    jobs_max: int = 1000
    """Jobs of one process."""
    memory_bytes_max: int = 96 * MiB
    """A process that needed more ends after its job."""


class WorkerProcess:
    """One process, used by one job at a time. Any thread may kill it and end it."""

    def __init__(self, limits: WorkerLimits) -> None:
        arguments = [os.getpid(), limits.jobs_max, limits.memory_bytes_max]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "riverrun.storage.background.worker", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Do not search the current directory for modules.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        self._pipes = Lock()
        self._is_ended = False
        self.idle_since = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begin(self, request: JobRequest) -> None:
        with self._pipes:
            if not self._is_ended:
                # If it has ended, ``receive`` shows it.
                with contextlib.suppress(BrokenPipeError):
                    send(_open(self._process.stdin), request)

    def receive(self) -> CompactionResult | ScrubResult | DigestBucket | JobEnd:
        with self._pipes:
            frame = None if self._is_ended else receive(_open(self._process.stdout))
        if frame is None:
            raise WorkerCrashed(f"the worker process ended with status {self._process.wait()}")
        assert not isinstance(frame, JobRequest), "a worker sends no requests"
        return frame

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Close its pipes, and wait until it has ended. It has no job, or is killed."""
        with self._pipes:
            self._is_ended = True
            for stream in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    _open(stream).close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _open(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "the worker has no pipes"
    return stream


class WorkerPool:
    """Threads may share it."""

    def __init__(self, metrics: Metrics, limits: WorkerLimits | None = None) -> None:
        self._limits = limits or WorkerLimits()
        self._lock = Lock()
        self._idle: WorkerProcess | None = None
        self._killed: list[WorkerProcess] = []
        """At most one per aborted job; ``end_unused`` collects them."""
        self._is_closed = False
        self._starts = metrics.counter(
            "riverrun_worker_starts_total",
            "Worker processes started for compaction, scrubbing and digests",
        )
        self._crashes = metrics.counter(
            "riverrun_worker_crashes_total", "Worker processes that ended during a job"
        )

    @property
    def idle_pid(self) -> int | None:
        """The process that is kept for the next job. Exposed for tests."""
        idle = self._idle
        return None if idle is None else idle.pid

    def compact(
        self, task: CompactionTask, bytes_per_second_max: int
    ) -> WorkerJob[CompactionResult]:
        return WorkerJob(self, task, bytes_per_second_max)

    def scrub(self, task: ScrubTask, bytes_per_second_max: int) -> WorkerJob[ScrubResult]:
        return WorkerJob(self, task, bytes_per_second_max)

    def digest(self, task: DigestTask, bytes_per_second_max: int) -> WorkerJob[DigestBucket]:
        return WorkerJob(self, task, bytes_per_second_max)

    def take(self) -> WorkerProcess:
        """A process for a job: the idle one, or a new one. Raises OSError if none can start."""
        with self._lock:
            worker, self._idle = self._idle, None
            if self._is_closed:
                raise CompactionAborted("the node stops")
        if worker is not None:
            if worker.is_running:
                return worker
            worker.end()
        try:
            worker = WorkerProcess(self._limits)
        except OSError as error:
            # Not with its errno: FileNotFoundError and a full disk mean something else to callers.
            raise OSError(f"the worker process cannot start: {error}") from error
        with self._lock:
            self._starts.value += 1
        return worker

    def give_back(self, worker: WorkerProcess) -> None:
        """The job is done, and the process takes another."""
        worker.idle_since = time.monotonic()
        with self._lock:
            if self._idle is None and not self._is_closed:
                self._idle = worker
                return
        worker.end()

    def crashed(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._crashes.value += 1
        worker.end()

    def kill(self, worker: WorkerProcess) -> None:
        """Abort its job. Does not wait; ``end_unused`` does."""
        worker.kill()
        with self._lock:
            self._killed.append(worker)

    @property
    def is_any_unused(self) -> bool:
        """Whether ``end_unused`` has something to end."""
        return self._idle is not None or bool(self._killed)

    def end_unused(self) -> None:
        """End the process that was idle for too long, and collect those that were killed. Waits for
        them, so call it in a thread."""
        with self._lock:
            ended, self._killed = self._killed, []
            worker = self._idle
            if worker is not None and not self._is_kept(worker):
                self._idle = None
                ended.append(worker)
        for each in ended:
            each.end()

    def _is_kept(self, worker: WorkerProcess) -> bool:
        idle_seconds = time.monotonic() - worker.idle_since
        return worker.is_running and idle_seconds < self._limits.idle_seconds_max

    def close(self) -> None:
        """End all processes. Jobs must be aborted before, and none can begin any more."""
        with self._lock:
            ended, self._killed = self._killed, []
            if self._idle is not None:
                self._idle.kill()
                ended.append(self._idle)
            self._idle = None
            self._is_closed = True
        for worker in ended:
            worker.end()


class WorkerJob(Generic[Result]):
    """One task in a worker process, on the real file system."""

    def __init__(
        self,
        pool: WorkerPool,
        task: CompactionTask | ScrubTask | DigestTask,
        bytes_per_second_max: int,
    ) -> None:
        self._pool = pool
        self._request = JobRequest(task=task, bytes_per_second_max=bytes_per_second_max)
        self._lock = Lock()
        self._worker: WorkerProcess | None = None
        self._is_aborted = False

    @property
    def pid(self) -> int | None:
        """The process of the running job. Exposed for tests."""
        worker = self._worker
        return None if worker is None else worker.pid

    def next(self) -> Result | None:
        """The next new or checked segment; None at the end. Waits, so call it in a thread.

        Raises the error of the task, ``CompactionAborted`` after ``abort``, ``WorkerCrashed``, or
        OSError if no process can start.
        """
        worker = self._worker or self._begin()
        try:
            response = worker.receive()
        except WorkerCrashed:
            if not self._release():
                raise CompactionAborted("by the node") from None
            self._pool.crashed(worker)
            raise
        if not isinstance(response, JobEnd):
            return cast("Result", response)
        if self._release():
            if response.is_last:
                worker.end()
            else:
                self._pool.give_back(worker)
        if response.error is not None:
            raise response.error
        return None

    def _begin(self) -> WorkerProcess:
        if self._is_aborted:
            raise CompactionAborted("before it started")
        worker = self._pool.take()
        with self._lock:
            self._worker = worker
        if self._is_aborted:
            self.abort()
        worker.begin(self._request)
        return worker

    def _release(self) -> bool:
        """Whether the process is still ours. An abort from here on must not kill it, because it may
        have another job soon."""
        with self._lock:
            worker, self._worker = self._worker, None
        return worker is not None

    def abort(self) -> None:
        """Make ``next`` raise soon. Does nothing after the end."""
        with self._lock:
            self._is_aborted = True
            worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.kill(worker)
