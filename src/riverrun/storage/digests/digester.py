"""Computes digests of logs beside the event loop.

Small ranges are read in a thread, because a worker process takes longer to start than to read them.
Large ones are read by a worker process of the lowest priority, at a limited rate. A result counts
only if compaction, retention or truncation did not change the files meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple, Protocol

from riverrun.model.settings import MiB
from riverrun.ports.files import Files
from riverrun.storage.background.jobs import BackgroundJobs, DigestJob
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.cleaning.compaction import CompactionAborted
from riverrun.storage.digests.digest import BUCKET_BYTES, digest
from riverrun.storage.digests.digest_task import (
    DigestAborted,
    DigestBucket,
    DigestTask,
    SegmentPlace,
)
from riverrun.storage.log import Log
from riverrun.storage.scrubbing.scrub import extent_of

JOBS_MAX: Final = 2
"""Digests that run at the same time. Others wait."""
SMALL_BYTES: Final = MiB
ATTEMPTS_MAX: Final = 3
"""Attempts while the files of a log change."""
BUCKETS_KEPT_MAX: Final = 4096
"""Results that are kept, for a second copy of the same log."""


class FilesChanged(Exception):
    """The files of the log changed in every attempt, or the log is gone."""


class DigestRange(NamedTuple):
    """Batches whose last offset is in [start, end)."""

    start: int
    end: int
    bounds: tuple[int, ...] = ()
    """The ends of the buckets; without them they are chosen by size."""


class DigestThreads(Protocol):
    def __call__(self, work: Callable[[], list[DigestBucket]]) -> Awaitable[list[DigestBucket]]: ...


class _KeptBucket(NamedTuple):
    layout: int
    bucket: DigestBucket


class Digester:
    """The digests of one node."""

    def __init__(
        self,
        files: Files,
        jobs: BackgroundJobs,
        *,
        in_thread: DigestThreads,
        bytes_per_second_max: Callable[[], int],
    ) -> None:
        """``in_thread`` runs a function that reads from the disk for a short time."""
        self._files = files
        self._jobs = jobs
        self._in_thread = in_thread
        self._bytes_per_second_max = bytes_per_second_max
        self._waiting = asyncio.Semaphore(JOBS_MAX)
        self._threads = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="log-digest")
        self._running: dict[DigestJob, None] = {}
        self._kept: dict[tuple[Log, int], _KeptBucket] = {}
        self._places: dict[Log, tuple[int, int, SegmentPlace]] = {}
        """Layout, offset and place at which the last digest of a log ended."""

    def close(self) -> None:
        """End running jobs soon."""
        for job in list(self._running):
            job.abort()
        self._threads.shutdown(wait=False)

    async def digest(
        self,
        log: Log,
        wanted: DigestRange,
        *,
        bytes_max: int = 0,
        is_read_back: bool = False,
        is_by_key: bool = False,
    ) -> list[DigestBucket]:
        """The buckets of a range, or without bounds of its first ``bytes_max`` bytes.

        The last bucket has ``damage`` if a batch is corrupt or cannot be read. Raises
        ``FilesChanged``.
        """
        if not (is_read_back or is_by_key or wanted.bounds):
            kept = self._take_kept(log, wanted, bytes_max)
            if kept:
                return kept
        async with self._waiting:
            for _ in range(ATTEMPTS_MAX):
                task = self._task(log, wanted, bytes_max, is_read_back, is_by_key)
                if task is not None:
                    layout = log.segments.layout
                    buckets = await self._run(task)
                    if buckets is not None and layout == log.segments.layout:
                        self._keep(log, layout, buckets, is_kept=not is_read_back)
                        return buckets
                if log.is_offline:
                    break
                await asyncio.sleep(0)
        raise FilesChanged(str(log.partition))

    def _task(
        self, log: Log, wanted: DigestRange, bytes_max: int, is_read_back: bool, is_by_key: bool
    ) -> DigestTask | None:
        """None while compaction renames the files."""
        extent = None if log.is_offline else extent_of(log)
        if extent is None:
            return None
        known = self._places.get(log)
        place = None
        if known is not None and known[:2] == (log.segments.layout, wanted.start):
            place = known[2]
        aborted = log.aborted_transactions(wanted.start, wanted.end) if is_by_key else ()
        return DigestTask(
            directory=extent.directory,
            segments=tuple(
                part
                for part in extent.segments
                if part.next_offset > wanted.start and part.base_offset < wanted.end
            ),
            start=wanted.start,
            end=wanted.end,
            bounds=wanted.bounds,
            bytes_max=bytes_max,
            place=place,
            is_read_back=is_read_back,
            is_by_key=is_by_key,
            aborted=tuple(one for one in aborted if one.last_offset < wanted.end),
        )

    async def _run(self, task: DigestTask) -> list[DigestBucket] | None:
        """None if the files have changed."""
        try:
            if task.size_bytes <= SMALL_BYTES:
                return await self._in_thread(
                    lambda: list(digest(self._files, task, lambda _: True))
                )
            return await self._run_job(task)
        except FileNotFoundError:
            return None
        except OSError as error:
            # An unreadable sector is damage, which another copy can repair.
            text = f"{task.directory} cannot be read: {error.strerror or error}"
            return [DigestBucket(start=task.start, end=task.start, digest=b"", size=0, damage=text)]

    async def _run_job(self, task: DigestTask) -> list[DigestBucket] | None:
        job = self._jobs.digest(task, self._bytes_per_second_max())
        self._running[job] = None
        loop = asyncio.get_running_loop()
        buckets: list[DigestBucket] = []
        try:
            while (bucket := await loop.run_in_executor(self._threads, job.next)) is not None:
                buckets.append(bucket)
        except (DigestAborted, CompactionAborted, WorkerCrashed):
            return None
        finally:
            del self._running[job]
            job.abort()
        return buckets

    # Results of the leader's log, for a second copy of it

    def _take_kept(self, log: Log, wanted: DigestRange, bytes_max: int) -> list[DigestBucket]:
        found: list[DigestBucket] = []
        start, size = wanted.start, 0
        while size < bytes_max:
            kept = self._kept.get((log, start))
            if kept is None or kept.layout != log.segments.layout or kept.bucket.end > wanted.end:
                break
            found.append(kept.bucket)
            start, size = kept.bucket.end, size + kept.bucket.size
        return found

    def _keep(self, log: Log, layout: int, buckets: list[DigestBucket], *, is_kept: bool) -> None:
        if not buckets:
            return
        for gone in [one for one in self._places if one.is_offline]:
            del self._places[gone]
        if buckets[-1].place is not None:
            self._places[log] = (layout, buckets[-1].end, buckets[-1].place)
        if is_kept:
            for bucket in buckets:
                if bucket.size >= BUCKET_BYTES and bucket.damage is None:
                    self._kept[log, bucket.start] = _KeptBucket(layout, bucket)
        while len(self._kept) > BUCKETS_KEPT_MAX:
            del self._kept[next(iter(self._kept))]
