"""The asynchronous part of a data directory: threads for the disk, and periodic tasks.

Producers that require a sync before the acknowledgement share it (group commit). Periodic tasks
flush, enforce retention, write checkpoints, expire producers, compact and remove files. A failed
sync takes the directory offline. A full disk fails appends until it has space again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import structlog
from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.model.settings import SECOND_MS
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import CorruptBatch
from riverrun.storage.background.jobs import BackgroundJobs, background_jobs
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, START_OFFSETS
from riverrun.storage.cleaning.cleaner import Cleaner, Steps
from riverrun.storage.cleaning.compaction import CompactionAborted
from riverrun.storage.directory import LogDirectory, SettingsFor
from riverrun.storage.flush import FlushJob, largest_unflushed, unflushed_below
from riverrun.storage.log import Log
from riverrun.storage.recovery.directory_recovery import recover_all
from riverrun.storage.removal import Removal
from riverrun.storage.segment.reader import ColdRead, Slice
from riverrun.storage.segment.segment import DELETED_SUFFIX, Segment
from riverrun.storage.settings import CleanerSettings
from riverrun.storage.space_monitor import is_disk_full

Result = TypeVar("Result")

SYNC_THREADS = 4
READ_THREADS = 4
TICK_SECONDS = 1.0
FIRST_RETENTION_MS = 30 * SECOND_MS
FLUSH_RETRY_SECONDS = 0.1
WHOLE_FLUSHES_MAX = 200
"""New and recovered logs flushed in one tick: their syncs delay all other writes to the disk."""
_logger = structlog.get_logger("riverrun.storage")


class PeriodicTask(Struct):
    interval_ms: int
    due_ms: float
    work: Callable[[], Awaitable[object]]


class LogManager:
    """Manages one ``LogDirectory``: ``recover``, then ``run`` until cancelled, then ``stop``."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        clock: Clock,
        metrics: Metrics,
        cleaner: CleanerSettings | None = None,
        jobs: BackgroundJobs | None = None,
    ) -> None:
        self._directory = directory
        self._files = directory.files
        self._clock = clock
        self._syncers = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="log-sync")
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="log-read")
        # This thread waits for a worker process, for minutes.
        self._cleaners = ThreadPoolExecutor(1, thread_name_prefix="log-clean")
        self._step: asyncio.Future[object] | None = None  # of the cleaner, in its thread
        self._flushes: dict[Log, asyncio.Task[None]] = {}
        self._expired_files: list[tuple[float, Removal]] = []
        self._checkpointing = asyncio.Lock()
        self._last_flushed_ms: dict[Log, int] = {}
        self.jobs = jobs or background_jobs(self._files, metrics)
        """Closed by ``stop``."""
        self._cleaner = Cleaner(
            self._files,
            directory.path,
            clock=clock,
            settings=cleaner or CleanerSettings(),
            start_job=self.jobs.compact,
            metrics=metrics,
            discard=self._remove_later,
        )
        self._flush_seconds = metrics.histogram(
            "riverrun_log_flush_seconds", "Duration of log flushes"
        )
        self._retained = metrics.counter(
            "riverrun_log_segments_discarded_total", "Segments discarded by retention"
        )

    # Threads

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run a function that may read from the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def _in_sync_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._syncers, work)

    async def load(self, cold: ColdRead) -> Slice:
        """Complete a cold read. Raises KafkaError."""
        while True:
            try:
                found = await self.in_thread(cold.load)
            except KafkaError:
                if cold.is_current:
                    cold.adopt()
                    raise
            except OSError as error:
                self._directory.note_write_error(error)
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
            else:
                if cold.is_current:
                    cold.adopt()
                    return found
            # Compaction or retention changed the files meanwhile.
            again = cold.again()
            if not isinstance(again, ColdRead):
                return again
            cold = again

    # Recovery

    async def recover(self, settings_for: SettingsFor) -> None:
        """Recover all logs in several threads."""
        directory = self._directory
        began = self._clock.monotonic()
        await recover_all(directory, settings_for, self.in_thread)
        await self.in_thread(partial(self._cleaner.load, directory.logs))
        logs = directory.logs.values()
        state = {
            "was_clean": directory.was_clean,
            "cut_bytes": sum(log.cut_bytes for log in logs),
            "damaged": sum(log.is_corrupt for log in logs),
        }
        _logger.info(
            "logs opened",
            logs=len(logs),
            bytes=sum(log.size_bytes for log in logs),
            seconds=round(self._clock.monotonic() - began, 3),
            **(state if logs else {}),
        )

    @property
    def is_disk_full(self) -> bool:
        return self._directory.space_monitor.is_full

    # Flushing

    async def flushed(self, log: Log, offset: int) -> None:
        """Wait until all below an offset is durable. Callers share syncs. Raises KafkaError."""
        while log.flushed_offset < offset:
            if offset > log.end_offset:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The log was truncated")
            await self._flush(log)
            if self._directory.is_offline or log.is_offline:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The data directory is offline")

    async def _flush(
        self, log: Log, *, whole: bool = False, closing: bool = False, is_name_durable: bool = False
    ) -> None:
        """Flush a log. If a flush is running, wait for it; a caller that needs more calls again."""
        while (running := self._flushes.get(log)) is not None:
            await asyncio.shield(running)
            if not whole:
                return
        if self._directory.is_offline or log.is_offline:
            return
        try:
            job = log.begin_flush(whole=whole, closing=closing)
        except OSError as error:
            # No descriptor, or no space for an index. Callers retry, and must not keep the event
            # loop busy meanwhile.
            self._directory.note_write_error(error)
            await asyncio.sleep(FLUSH_RETRY_SECONDS)
            return
        if job is not None:
            if is_name_durable:
                job.skip_directory(self._directory.path)
            # A task of its own, because a caller may be cancelled while the thread continues.
            task = asyncio.get_running_loop().create_task(self._run_flush(log, job))
            self._flushes[log] = task
            await asyncio.shield(task)

    async def _run_flush(self, log: Log, job: FlushJob) -> None:
        try:
            await self._sync(log, job)
        finally:
            # Not in a callback of the task, which runs one event-loop iteration later. Until then,
            # callers would await a finished task, which does not yield, in an endless loop.
            del self._flushes[log]

    async def _sync(self, log: Log, job: FlushJob) -> None:
        began = self._clock.monotonic()
        try:
            await self._in_sync_thread(job.run)
        except OSError as error:
            if log.is_offline:  # deleted meanwhile with its files
                log.flush_failed(job)
                return
            if not is_disk_full(error) or not job.has_synced:
                log.flush_failed(job)
                self._directory.fail(f"a sync failed: {error}")
                return
            # The batches are durable. Only the side files found no space.
            self._directory.note_write_error(error)
        log.flushed(job)
        self._last_flushed_ms[log] = self._clock.now_ms()
        self._flush_seconds.observe(self._clock.monotonic() - began)

    async def checkpoint(self, *names: str) -> bool:
        """Write the offsets of all partitions to all or some of the files. Returns success."""
        async with self._checkpointing:
            checkpoint = self._directory.checkpoint(*names)
            return not self._directory.is_offline and await self._written(checkpoint.write)

    async def _written(self, write: Callable[[], None]) -> bool:  # if not, the old file stays
        try:
            await self._in_sync_thread(write)
        except OSError as error:
            self._directory.note_write_error(error)
            _logger.warning("checkpoint not written", error=str(error))
            return False
        return True

    async def checkpoint_start_offsets(self) -> bool:
        """After DeleteRecords: make the new start offset durable. Returns success."""
        return await self.checkpoint(START_OFFSETS)

    async def truncate(
        self,
        log: Log,
        offset: int,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        start_at: int | None = None,
    ) -> bool:
        """Remove batches from an offset on. A crash at any moment is recovered correctly.

        With ``start_at``, remove all batches and start again there. Returns False, and removes
        nothing, if ``is_wanted`` is false once the disk is ready. The offsets on disk are lowered
        to the new end first: batches that are appended now are not durable and not compacted.
        """
        while not log.is_offline:
            # Flushes and the cleaner raise the offsets. The cut follows the last look at once.
            keep = log.segments.end_below(offset, log.settings) if start_at is None else 0
            is_written = True
            if (running := self._flushes.get(log)) is not None:
                await asyncio.shield(running)
            elif self._cleaner.swapping is log and self._step is not None:
                await asyncio.wait([self._step])
            elif log.cleaned_to > keep:
                lower = partial(self._cleaner.lower, self._directory.logs, log, Offset(keep))
                is_written = await self._written(lower)
            elif log.recovery_point > keep:
                log.lower_recovery_point(keep)
                is_written = await self.checkpoint(RECOVERY_POINTS)
            else:
                break
            if not is_written:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The checkpoint was not written")
        if log.is_offline or not is_wanted():
            return False
        segments, start = list(log.segments), log.start_offset
        if start_at is None:
            log.truncate_to(offset)
        else:
            log.truncate_fully_and_start_at(start_at)
        self._remove_later(log, [old for old in segments if old not in log.segments])
        if log.start_offset < start and not await self.checkpoint(START_OFFSETS):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The checkpoint was not written")
        return True

    # Periodic tasks

    async def run(self) -> None:
        """Run the periodic tasks until cancelled."""
        tasks = self._periodic_tasks()
        tick = min(TICK_SECONDS, self._directory.settings.flush_check_interval_ms / SECOND_MS)
        cleaning = asyncio.create_task(self._clean(), name="compaction")
        try:
            while True:
                await asyncio.sleep(tick)
                now = self._clock.monotonic() * SECOND_MS
                for task in tasks:
                    if now >= task.due_ms:
                        task.due_ms = now + task.interval_ms
                        await task.work()
                if cleaning.done():
                    cleaning.result()
        finally:
            self._cleaner.abort()
            cleaning.cancel()
            await asyncio.gather(cleaning, return_exceptions=True)

    def _periodic_tasks(self) -> list[PeriodicTask]:
        settings = self._directory.settings
        now = self._clock.monotonic() * SECOND_MS
        retention_ms = settings.retention_check_interval_ms
        expiration_ms = settings.producer_expiration_check_interval_ms
        checkpoint_ms = settings.recovery_point_interval_ms
        checkpoint = partial(self.checkpoint, RECOVERY_POINTS, HIGH_WATERMARKS)
        start_ms = settings.start_offset_interval_ms
        return [
            PeriodicTask(0, now, self._flush_due_logs),
            PeriodicTask(0, now, self._expire_kept_logs),
            PeriodicTask(0, now, self._remove_files),
            PeriodicTask(0, now, self._end_unused_workers),
            PeriodicTask(retention_ms, now + min(FIRST_RETENTION_MS, retention_ms), self._retain),
            PeriodicTask(expiration_ms, now + expiration_ms, self._expire_producers),
            PeriodicTask(checkpoint_ms, now + checkpoint_ms, checkpoint),
            PeriodicTask(start_ms, now + start_ms, partial(self.checkpoint, START_OFFSETS)),
        ]

    def _all_logs(self) -> list[Log]:
        metadata = self._directory.metadata_log
        return [*self._directory.logs.values(), *([metadata] if metadata is not None else [])]

    async def _flush_due_logs(self) -> None:
        """Flush logs that are due by their settings, a closed segment or unflushed bytes."""
        directory = self._directory
        unflushed = [] if self.is_disk_full else directory.unflushed[:WHOLE_FLUSHES_MAX]
        del directory.unflushed[: len(unflushed)]
        rolled, directory.rolled = directory.rolled, {}
        whole = [log for log in dict.fromkeys([*unflushed, *rolled]) if not log.is_offline]
        end_offsets = [log.end_offset for log in whole]
        await self._flush_all(whole, whole=True, shares_names=bool(unflushed))
        directory.unflushed += unflushed_below(whole, end_offsets)
        now_ms = self._clock.now_ms()
        dirty = [log for log in directory.logs.values() if log.flushed_offset < log.end_offset]
        await self._flush_all([log for log in dirty if self._is_due(log, now_ms)])
        largest = largest_unflushed(dirty, directory.settings.unflushed_bytes_max)
        await self._flush_all(largest, whole=True)
        if largest or any(log.recovery_point for log in whole):
            await self.checkpoint(RECOVERY_POINTS)
        if self.is_disk_full:
            await self._check_space()

    async def _check_space(self) -> None:
        space = await self.in_thread(self._directory.space)
        if self._directory.space_monitor.update(
            self._clock.monotonic() * SECOND_MS,
            sum(log.end_offset for log in self._directory.logs.values()),
            free_bytes=space.usable_bytes,
            total_bytes=space.total_bytes,
        ):
            path, free = self._directory.path, space.usable_bytes
            _logger.info("disk has space again", path=path, free_bytes=free)

    def _is_due(self, log: Log, now_ms: int) -> bool:
        if log.end_offset - log.flushed_offset >= log.settings.flush_messages:
            return True
        return now_ms - self._last_flushed_ms.setdefault(log, now_ms) >= log.settings.flush_ms

    async def _flush_all(
        self,
        logs: Iterable[Log],
        *,
        whole: bool = False,
        closing: bool = False,
        shares_names: bool = False,
    ) -> None:
        """``shares_names`` if many logs may be new: one sync makes all their names durable."""
        waiting = iter(list(logs))
        if self._directory.is_offline or (shares_names and not await self._sync_names()):
            return

        async def flush_some() -> None:
            for log in waiting:
                await self._flush(log, whole=whole, closing=closing, is_name_durable=shares_names)

        await asyncio.gather(*(flush_some() for _ in range(SYNC_THREADS)))

    async def _sync_names(self) -> bool:
        """Sync the data directory, which has the names of all logs. Returns success."""
        try:
            await self._in_sync_thread(partial(self._files.sync_directory, self._directory.path))
        except OSError as error:
            self._directory.fail(f"a sync failed: {error}")
        return not self._directory.is_offline

    async def _retain(self) -> None:
        """Roll logs whose active segment is old, and enforce retention."""
        if self._directory.is_offline:
            return
        now_ms = self._clock.now_ms()
        yielder = Yielder(self._clock)
        for log in self._all_logs():
            await yielder.step()
            if log.is_offline:
                continue
            try:
                log.roll_if_due(now_ms)
                discarded = log.enforce_retention(now_ms)
                self._retained.value += len(discarded)
                self._remove_later(log, discarded)
            except OSError as error:
                self._directory.note_write_error(error)
                _logger.warning("retention failed", partition=str(log.partition), error=str(error))

    async def _expire_producers(self) -> None:
        now_ms = self._clock.now_ms()
        yielder = Yielder(self._clock)
        for log in self._all_logs():
            await yielder.step()
            log.producers.expire(now_ms, self._directory.settings.producer_expiration_ms)

    # Removing files

    def _remove_later(self, log: Log, segments: list[Segment]) -> None:
        due = self._clock.monotonic() + log.settings.file_delete_delay_ms / SECOND_MS
        paths = [path + DELETED_SUFFIX for segment in segments for path in segment.paths()]
        names = tuple(os.path.basename(path) for path in paths)
        if names:
            self._expired_files.append((due, Removal(self._files, log.path, names)))

    async def _expire_kept_logs(self) -> None:
        if self._directory.kept:
            space = await self.in_thread(self._directory.space)
            self._directory.kept.expire(space, is_disk_full=self.is_disk_full)

    async def _remove_files(self) -> None:
        now = self._clock.monotonic()
        removals, self._directory.removals = self._directory.removals, []
        removals += [removal for due, removal in self._expired_files if due <= now]
        self._expired_files = [entry for entry in self._expired_files if entry[0] > now]
        for removal in removals:
            if not await self._in_sync_thread(removal.run):
                self._directory.removals.append(removal)

    # Compaction

    async def _clean(self) -> None:
        while True:
            if self._cleaner.settings.enable and not self._directory.is_offline:
                try:
                    if await self._drive(self._cleaner.clean_once(self._directory.logs)):
                        continue
                except OSError as error:
                    self._directory.fail(f"compaction failed: {error}")
            await asyncio.sleep(self._cleaner.settings.backoff_ms / SECOND_MS)

    async def _drive(self, steps: Steps) -> bool:
        """Run a generator that yields functions which wait for the disk."""
        try:
            work = next(steps)
            while True:
                try:
                    self._step = asyncio.get_running_loop().run_in_executor(self._cleaners, work)
                    result = await self._step
                except (OSError, CorruptBatch, CompactionAborted, WorkerCrashed) as error:
                    work = steps.throw(error)
                else:
                    work = steps.send(result)
        except StopIteration as end:
            return bool(end.value)
        finally:
            steps.close()

    async def _end_unused_workers(self) -> None:
        if self.jobs.is_any_unused:
            await self._in_sync_thread(self.jobs.end_unused)

    # Clean stop

    async def stop(self, *, clean: bool = True, broker_epoch: int = -1) -> None:
        """Flush everything and write the clean-shutdown marker. ``run`` has ended before."""
        try:
            if clean and not self._directory.is_offline:
                await self._stop_cleanly(broker_epoch)
        finally:
            self.jobs.close()
            for threads in (self._syncers, self._readers, self._cleaners):
                threads.shutdown(wait=False)

    async def _stop_cleanly(self, broker_epoch: int) -> None:
        await self.in_thread(self._directory.find_unloaded)
        all_logs = [*self._all_logs(), *self._directory.kept.logs]
        await self._flush_all(all_logs, whole=True, closing=True, shares_names=True)
        unflushed = [log for log in self._all_logs() if log.recovery_point < log.end_offset]
        await self._remove_files()
        await self.checkpoint()
        if unflushed or self._directory.is_offline:
            _logger.error("stopped with unflushed logs", logs=len(unflushed))
            return
        try:
            await self._in_sync_thread(partial(self._directory.mark_clean, broker_epoch))
        except OSError as error:
            _logger.error("clean-shutdown marker not written", error=str(error))
