"""Background jobs: compactions, scrubs and digests, in a worker process or inline.

Ten million records would hold the GIL for half a minute, and a thread cannot be niced. So a node
runs jobs in worker processes (``worker_pool``). Those see only the real file system. The simulation
and tests run jobs inline, on any ``Files``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from riverrun.ports.files import Files, OsFiles
from riverrun.ports.metrics import Metrics
from riverrun.storage.background.worker_pool import WorkerPool
from riverrun.storage.cleaning.compaction import CompactionResult, CompactionTask, compact
from riverrun.storage.digests.digest import digest
from riverrun.storage.digests.digest_task import DigestBucket, DigestTask
from riverrun.storage.scrubbing.scrub import ScrubJob, ScrubResult, ScrubTask, scrub


class CompactionJob(Protocol):
    """A running compaction. ``next`` waits, so call it in a thread; ``abort`` does not wait."""

    def next(self) -> CompactionResult | None:
        """The next new segment; None at the end."""
        ...

    def abort(self) -> None:
        """Make ``next`` raise ``CompactionAborted`` soon. Does nothing after the end."""
        ...


StartCompaction = Callable[[CompactionTask, int], CompactionJob]
"""Starts a task, with a limit of bytes read per second (0: none)."""


class DigestJob(Protocol):
    """A running digest. ``next`` waits, so call it in a thread; ``abort`` does not wait."""

    def next(self) -> DigestBucket | None:
        """The next bucket; None at the end."""
        ...

    def abort(self) -> None:
        """Make ``next`` end soon. Does nothing after the end."""
        ...


class BackgroundJobs(Protocol):
    """Starts the jobs of one node."""

    def compact(self, task: CompactionTask, bytes_per_second_max: int) -> CompactionJob: ...

    def scrub(self, task: ScrubTask, bytes_per_second_max: int) -> ScrubJob: ...

    def digest(self, task: DigestTask, bytes_per_second_max: int) -> DigestJob: ...

    @property
    def is_any_unused(self) -> bool:
        """Whether ``end_unused`` has something to end."""
        ...

    def end_unused(self) -> None:
        """End processes that have nothing to do. Waits for them, so call it in a thread."""
        ...

    def close(self) -> None:
        """All jobs are aborted: release the rest."""
        ...


def background_jobs(files: Files, metrics: Metrics) -> BackgroundJobs:
    """Worker processes for the real file system, which is the only one that they can see."""
    return WorkerPool(metrics) if isinstance(files, OsFiles) else InlineJobs(files)


class InlineJobs:
    """Runs jobs in the caller's process, without a limit, because simulated time does not pass."""

    is_any_unused = False

    def __init__(self, files: Files) -> None:
        self._files = files

    def compact(self, task: CompactionTask, _: int) -> CompactionJob:
        return InlineCompaction(self._files, task)

    def scrub(self, task: ScrubTask, _: int) -> ScrubJob:
        return InlineScrub(self._files, task)

    def digest(self, task: DigestTask, _: int) -> DigestJob:
        return InlineDigest(self._files, task)

    def end_unused(self) -> None:
        """There is nothing to end."""

    def close(self) -> None:
        """There is nothing to release."""


class InlineCompaction:
    def __init__(self, files: Files, task: CompactionTask) -> None:
        self._is_aborted = False
        self._results = compact(files, task, lambda _: not self._is_aborted)

    def next(self) -> CompactionResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


class InlineScrub:
    def __init__(self, files: Files, task: ScrubTask) -> None:
        self._is_aborted = False
        self._results = scrub(files, task, lambda _: not self._is_aborted)

    def next(self) -> ScrubResult | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True


class InlineDigest:
    def __init__(self, files: Files, task: DigestTask) -> None:
        self._is_aborted = False
        self._results = digest(files, task, lambda _: not self._is_aborted)

    def next(self) -> DigestBucket | None:
        return next(self._results, None)

    def abort(self) -> None:
        self._is_aborted = True
