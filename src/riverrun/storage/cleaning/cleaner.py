"""Chooses the log that needs compaction most, and compacts it step by step.

``clean_once`` is a generator. It yields functions that wait for the disk and receives their
results, so that ``log_manager`` runs them in a thread and tests call them directly. ``compaction``
writes the new segments, and ``swap`` puts them into the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from typing import Final

import structlog
from msgspec import Struct

from riverrun.model.ids import Offset, TopicPartition
from riverrun.model.settings import LONG_MAX
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import CorruptBatch
from riverrun.storage.background.jobs import CompactionJob, StartCompaction
from riverrun.storage.background.worker_pool import WorkerCrashed
from riverrun.storage.checkpoints import (
    CLEANER_OFFSETS,
    CorruptCheckpoint,
    read_offsets,
    write_offsets,
)
from riverrun.storage.cleaning.cleaned_segment import discard_cleaned
from riverrun.storage.cleaning.compaction import (
    CompactionAborted,
    CompactionResult,
    CompactionTask,
    LastRecord,
    SourceSegment,
)
from riverrun.storage.cleaning.swap import Swap
from riverrun.storage.log import Log
from riverrun.storage.segment.index import TIME_ENTRY
from riverrun.storage.segment.segment import Segment
from riverrun.storage.settings import CleanerSettings
from riverrun.storage.space_monitor import is_disk_full

Steps = Generator[Callable[[], object], object, bool]
"""Yields functions to run in a thread, and receives their results."""

CRASHES_MAX: Final = 3
"""Compactions of one log that may end with a crash of the worker process, before it is left alone:
other logs must be compacted too."""
_logger = structlog.get_logger("riverrun.storage")


class CompactionCandidate(Struct, frozen=True):
    """A log that can be compacted, and how urgent that is."""

    log: Log
    segments: tuple[Segment, ...]
    first_dirty_offset: int
    ratio: float
    is_overdue: bool


def find_candidate(log: Log, first_dirty_offset: int, now_ms: int) -> CompactionCandidate | None:
    """The segments of a log that can be compacted; None if nothing was added since the last time.

    Excludes the active segment, records above the last stable offset, and records younger than
    min.compaction.lag.ms.
    """
    settings = log.settings
    if not settings.is_compacted:
        return None
    bound = min(log.last_stable_offset, log.high_watermark)
    segments: list[Segment] = []
    for segment in log.segments[:-1]:
        lag_min = settings.min_compaction_lag_ms
        if segment.next_offset > bound:
            break
        if lag_min > 0 and segment.max_timestamp > now_ms - lag_min:
            break
        segments.append(segment)
    dirty = [segment for segment in segments if segment.next_offset > first_dirty_offset]
    dirty_bytes = sum(segment.size for segment in dirty)
    if not dirty_bytes:
        return None
    begun = [segment.first_timestamp for segment in dirty if segment.first_timestamp is not None]
    oldest = min((timestamp for timestamp in begun if timestamp >= 0), default=now_ms)
    return CompactionCandidate(
        log,
        tuple(segments),
        first_dirty_offset,
        dirty_bytes / sum(segment.size for segment in segments),
        settings.max_compaction_lag_ms < LONG_MAX
        and now_ms - oldest > settings.max_compaction_lag_ms,
    )


def choose(candidates: Iterable[CompactionCandidate]) -> CompactionCandidate | None:
    """The candidate that is overdue, or has the highest dirty ratio above its limit."""
    due = [
        each
        for each in candidates
        if each.is_overdue or each.ratio > each.log.settings.min_cleanable_dirty_ratio
    ]
    return max(due, key=lambda each: (each.is_overdue, each.ratio), default=None)


class Cleaner:
    """Compacts the logs of one directory, one at a time."""

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        clock: Clock,
        settings: CleanerSettings,
        start_job: StartCompaction,
        metrics: Metrics,
        discard: Callable[[Log, list[Segment]], None],
    ) -> None:
        self._files = files
        self._path = path
        self._clock = clock
        self.settings = settings
        self._start_job = start_job
        self._discard = discard
        """Takes replaced segments, whose files are removed after file.delete.delay.ms."""
        self._writing = threading.Lock()
        """Two threads write the checkpoint. The offsets are read under the lock, so that an older
        state never replaces a newer one."""
        self._job: CompactionJob | None = None
        self.swapping: Log | None = None
        """The log into which a new segment is being put. It must not be truncated: after a crash,
        a restart would complete the swap, and restore the old records instead of new ones."""
        self.uncleanable: dict[Log, str] = {}
        """Logs with damage, which must not be copied, or on which the worker crashes repeatedly,
        and the reason."""
        self._layouts: dict[Log, int] = {}
        self._crashes: dict[Log, int] = {}
        self._cleanings = metrics.counter(
            "riverrun_log_cleaner_runs_total", "Completed compactions"
        )
        self._failures = metrics.counter(
            "riverrun_log_cleaner_failures_total", "Compactions that failed"
        )
        self._read = metrics.counter(
            "riverrun_log_cleaner_read_records_total", "Records read by compaction"
        )
        self._kept = metrics.counter(
            "riverrun_log_cleaner_kept_records_total", "Records kept by compaction"
        )
        metrics.gauge(
            "riverrun_log_cleaner_uncleanable_partitions",
            "Partitions that are not compacted because of damage or repeated crashes",
            lambda: len(self.uncleanable),
        )

    def load(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Restore the compacted offsets of the logs after a restart. Waits for the disk."""
        try:
            known = read_offsets(self._files, self._path, CLEANER_OFFSETS)
        except CorruptCheckpoint as error:
            # Without it, everything counts as dirty: more work, but the same result.
            _logger.warning("cleaner checkpoint ignored", error=str(error))
            return
        for partition, log in logs.items():
            log.cleaned_to = min(known.get(partition, Offset(0)), log.end_offset)

    def abort(self) -> None:
        """End a running compaction soon. Segments that are swapped in stay."""
        if self._job is not None:
            self._job.abort()

    def clean_once(self, logs: Mapping[TopicPartition, Log]) -> Steps:
        """Compact the log that needs it most. Returns whether there was one.

        Raises OSError if swapping in a segment fails. Then the directory must go offline.
        """
        now_ms = self._clock.now_ms()
        for log in list(self.uncleanable):
            # The log was deleted or repaired, so it may be compacted again.
            if logs.get(log.partition) is not log or log.segments.layout != self._layouts[log]:
                del self.uncleanable[log], self._layouts[log]
        for log in list(self._crashes):
            if logs.get(log.partition) is not log:
                del self._crashes[log]
        found = choose(
            candidate
            for log in logs.values()
            if log.settings.is_compacted
            and log not in self.uncleanable
            and (candidate := find_candidate(log, max(log.cleaned_to, log.start_offset), now_ms))
        )
        if found is None:
            return False
        try:
            cleaned = yield from self._compact(found, now_ms)
        except (CompactionAborted, FileNotFoundError):
            # The node stops, or retention, truncation or deletion removed the segments.
            yield lambda: self._remove_cleaned(found.log)
            return False
        except WorkerCrashed as error:
            self._crashed(found.log, error)
            yield lambda: self._remove_cleaned(found.log)
            return False
        if cleaned is None:
            return False
        self._cleanings.value += 1
        self._crashes.pop(found.log, None)
        found.log.cleaned_to = Offset(cleaned.cleaned_to)
        try:
            yield partial(self.checkpoint, logs)
        except OSError as error:
            # The old file stays. Some work is repeated after a restart.
            _logger.warning("cleaner checkpoint not written", error=str(error))
        return True

    def _compact(
        self, candidate: CompactionCandidate, now_ms: int
    ) -> Generator[Callable[[], object], object, CompactionResult | None]:
        """Swap in one new segment after another. Returns the last one, or None on failure.

        Raises CompactionAborted if a truncation cut into the compacted range. Records that are
        appended there are dirty, and the new segments lack records that are the latest again.
        """
        log = candidate.log
        log.segments.compacting_to = candidate.segments[-1].next_offset
        rate = int(min(self.settings.read_bytes_per_second_max, LONG_MAX))
        job = self._start_job(self._task(candidate, now_ms), 0 if rate == LONG_MAX else rate)
        self._job = job
        last: CompactionResult | None = None
        try:
            while True:
                try:
                    cleaned = yield job.next
                except FileNotFoundError:
                    raise
                except (CorruptBatch, OSError) as error:
                    if log.is_offline or log.segments.compacting_to is None:
                        # Deleted or truncated: the files may belong to a new log of that name, or
                        # end within a batch.
                        raise CompactionAborted(str(log.partition)) from None
                    self._give_up(log, error)
                    yield lambda: self._remove_cleaned(log)
                    return None
                if cleaned is None:
                    if log.segments.compacting_to is None:
                        raise CompactionAborted(str(log.partition))
                    return last
                assert isinstance(cleaned, CompactionResult)
                self.swapping = log
                if not (yield from self._swap_in(log, cleaned)):
                    return None
                self.swapping = None
                self._read.value += cleaned.records_read
                self._kept.value += cleaned.records_kept
                last = cleaned
        finally:
            self._job = self.swapping = log.segments.compacting_to = None
            job.abort()

    def _swap_in(
        self, log: Log, cleaned: CompactionResult
    ) -> Generator[Callable[[], object], object, bool]:
        """Put a new segment into the log. Returns False if the disk is full."""
        swap = Swap(self._files, log, cleaned)
        try:
            if swap.can_enter():
                yield swap.complete
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._give_up(log, error)
            yield swap.abandon
            return False
        if not swap.can_enter():
            yield swap.abandon
            raise CompactionAborted(str(log.partition))
        self._discard(log, swap.enter())
        yield swap.settle
        swap.finish()
        return True

    def _task(self, candidate: CompactionCandidate, now_ms: int) -> CompactionTask:
        log, settings = candidate.log, candidate.log.settings
        interval = max(settings.index_interval_bytes, 1)
        sources = tuple(
            SourceSegment(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size=segment.size,
                index_bytes=(segment.size // interval + 1) * TIME_ENTRY.size,
            )
            for segment in candidate.segments
        )
        return CompactionTask(
            directory=log.path,
            sources=sources,
            first_dirty_offset=candidate.first_dirty_offset,
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            segment_bytes_max=settings.segment_bytes,
            index_bytes_max=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            map_bytes_max=self.settings.dedupe_buffer_bytes,
            map_load_factor=self.settings.load_factor,
            last_records={
                producer.producer_id: LastRecord(
                    offset=producer.batches[-1].last_offset if producer.batches else None,
                    epoch=producer.epoch,
                )
                for producer in log.producers.entries.values()
            },
            aborted=log.aborted_transactions(sources[0].base_offset, sources[-1].next_offset),
        )

    def _give_up(self, log: Log, error: Exception) -> None:
        self._failures.value += 1
        _logger.error("compaction failed", partition=str(log.partition), error=str(error))
        if isinstance(error, CorruptBatch):
            self.uncleanable[log] = str(error)
            self._layouts[log] = log.segments.layout
            log.is_suspect = True

    def _crashed(self, log: Log, error: WorkerCrashed) -> None:
        """Try again later, or leave the log alone until its files change or the node restarts."""
        self._failures.value += 1
        crashes = self._crashes[log] = self._crashes.get(log, 0) + 1
        is_left = crashes >= CRASHES_MAX
        _logger.error(
            "compaction failed",
            partition=str(log.partition),
            error=str(error),
            crashes=crashes,
            is_tried_again=not is_left,
        )
        if is_left:
            self.uncleanable[log] = str(error)
            self._layouts[log] = log.segments.layout
            del self._crashes[log]

    def _remove_cleaned(self, log: Log) -> None:
        try:
            discard_cleaned(self._files, log.path)
        except OSError as error:  # the next start removes them
            _logger.warning("files not removed", directory=log.path, error=str(error))

    def checkpoint(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Store the compacted offsets. Waits for the disk. Raises OSError."""
        with self._writing:
            # The event loop may create and delete logs meanwhile; ``list`` copies in one step.
            compacted = [(key, log) for key, log in list(logs.items()) if log.settings.is_compacted]
            offsets = {key: log.cleaned_to for key, log in compacted}
            write_offsets(self._files, self._path, CLEANER_OFFSETS, offsets)

    def lower(self, logs: Mapping[TopicPartition, Log], log: Log, offset: Offset) -> None:
        """Before a truncation: count records from an offset on as dirty. Waits for the disk. Raises
        OSError; then the old offset stays, so that the next attempt writes again.

        Otherwise a tombstone could expire before the new records that it supersedes are removed."""
        before, log.cleaned_to = log.cleaned_to, offset
        try:
            self.checkpoint(logs)
        except OSError:
            log.cleaned_to = max(before, log.cleaned_to)
            raise
