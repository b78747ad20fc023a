"""Chooses the log that needs compaction most, and carries it through, step by step.

``clean_once`` is written as one story, but waits for nothing itself: it yields what has to wait (a
function for a thread) and is sent the result, so ``runner`` awaits and tests simply call. What a
log looks like afterwards is decided by ``compaction``; how it gets there by ``swap``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Iterable, Mapping

import structlog
from msgspec import Struct

from riverrun.model.ids import Offset, TopicPartition
from riverrun.model.settings import LONG_MAX
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.metrics import Metrics
from riverrun.records.batch import CorruptBatch
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
from riverrun.storage.worker import CompactionJob, StartCompaction

Steps = Generator[Callable[[], object], object, bool]
"""Yields what is to be run in a thread, is sent what that returned."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_logger = structlog.get_logger("riverrun.storage")


class CompactionCandidate(Struct, frozen=True):
    """A log that may be compacted, and how much that is needed."""

    log: Log
    segments: tuple[Segment, ...]
    first_dirty_offset: int
    ratio: float
    is_overdue: bool


def judge(log: Log, first_dirty_offset: int, now_ms: int) -> CompactionCandidate | None:
    """What could be compacted of a log, if it has anything new since the last time.

    Never the active segment, nothing above the high watermark or inside an open transaction, and
    nothing younger than min.compaction.lag.ms.
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
    """The one that is overdue or the dirtiest, if any is dirty enough."""
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
        """Takes segments that were replaced; their files are to go after file.delete.delay.ms."""
        self._job: CompactionJob | None = None
        self.uncleanable: dict[Log, str] = {}
        """Logs with damage that must not be copied, and what it is."""
        self._layouts: dict[Log, int] = {}
        self._cleanings = metrics.counter(
            "riverrun_log_cleaner_runs_total", "Compactions that were completed"
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
            "Partitions that cannot be compacted because of damage",
            lambda: len(self.uncleanable),
        )

    def load(self, logs: Mapping[TopicPartition, Log]) -> None:
        """Tell the logs up to where they were compacted before the restart. Waits for the disk."""
        try:
            known = read_offsets(self._files, self._path, CLEANER_OFFSETS)
        except CorruptCheckpoint as error:
            # Without it everything counts as dirty: more work, the same result.
            _logger.warning("cleaner checkpoint is not readable", problem=str(error))
            return
        for partition, log in logs.items():
            log.cleaned_to = min(known.get(partition, Offset(0)), log.end_offset)

    def abort(self) -> None:
        """Let a compaction that is under way end soon; what it has put in place stays."""
        if self._job is not None:
            self._job.abort()

    def clean_once(self, logs: Mapping[TopicPartition, Log]) -> Steps:
        """Compact the log that needs it most; whether there was one. Raises OSError for the disk's
        failures in putting a segment in place, after which the directory must not be trusted.
        """
        now_ms = self._clock.now_ms()
        for log in list(self.uncleanable):
            # Gone, or repaired: what lies there now is to be judged anew.
            if logs.get(log.partition) is not log or log.segments.layout != self._layouts[log]:
                del self.uncleanable[log], self._layouts[log]
        found = choose(
            candidate
            for log in logs.values()
            if log.settings.is_compacted
            and log not in self.uncleanable
            and (candidate := judge(log, max(log.cleaned_to, log.start_offset), now_ms))
        )
        if found is None:
            return False
        try:
            cleaned = yield from self._compact(found, now_ms)
        except (CompactionAborted, FileNotFoundError):
            # Somebody wants to stop, or retention, truncation or deletion was quicker.
            yield lambda: self._tidy(found.log)
            return False
        if cleaned is None:
            return False
        self._cleanings.value += 1
        found.log.cleaned_to = Offset(cleaned.cleaned_to)
        yield self.checkpoint(logs)
        return True

    def _compact(
        self, candidate: CompactionCandidate, now_ms: int
    ) -> Generator[Callable[[], object], object, CompactionResult | None]:
        """Put one new segment after the other in place; the last one, or None if it failed."""
        log = candidate.log
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
                    if log.is_offline:  # deleted: these may be the files of the next of its name
                        raise CompactionAborted(str(log.partition)) from None
                    self._give_up(log, error)
                    yield lambda: self._tidy(log)
                    return None
                if cleaned is None:
                    return last
                assert isinstance(cleaned, CompactionResult)
                swap = Swap(self._files, log, cleaned)
                try:
                    if swap.can_enter():
                        yield swap.complete
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    self._give_up(log, error)
                    yield swap.abandon
                    return None
                if not swap.can_enter():
                    yield swap.abandon
                    raise CompactionAborted(str(log.partition))
                self._discard(log, swap.enter())
                yield swap.settle
                swap.finish()
                self._read.value += cleaned.records_read
                self._kept.value += cleaned.records_kept
                last = cleaned
        finally:
            self._job = None
            job.abort()

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
                for producer in log.producers.known.values()
            },
            aborted=log.aborted_transactions(sources[0].base_offset, sources[-1].next_offset),
        )

    def _give_up(self, log: Log, error: Exception) -> None:
        self._failures.value += 1
        _logger.error("compaction failed", partition=str(log.partition), problem=str(error))
        if isinstance(error, CorruptBatch):
            self.uncleanable[log] = str(error)
            self._layouts[log] = log.segments.layout
            log.is_suspect = True

    def _tidy(self, log: Log) -> None:
        try:
            discard_cleaned(self._files, log.path)
        except OSError as error:  # the next start removes them
            _logger.warning("cannot remove files", directory=log.path, problem=str(error))

    def checkpoint(self, logs: Mapping[TopicPartition, Log]) -> Callable[[], None]:
        """What stores up to where the logs are compacted, for a thread."""
        offsets = {key: log.cleaned_to for key, log in logs.items() if log.settings.is_compacted}

        def write() -> None:
            try:
                write_offsets(self._files, self._path, CLEANER_OFFSETS, offsets)
            except OSError as error:
                # The old file stays in place: some of the work is done again after a restart.
                _logger.warning("cleaner checkpoint not written", problem=str(error))

        return write
