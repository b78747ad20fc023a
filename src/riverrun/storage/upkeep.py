"""The upkeep of a log: rolling, flushing, discarding, truncating, replacing and closing segments.

The base of ``log.Log``, which appends and reads. What waits for the disk is handed out as a job.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset, TopicPartition
from riverrun.ports.files import Files
from riverrun.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from riverrun.storage.cleaning.retention import discardable
from riverrun.storage.epochs import LeaderEpochs
from riverrun.storage.flush import FlushJob
from riverrun.storage.open_files import OpenFiles
from riverrun.storage.producers import Producers
from riverrun.storage.recovery.index_files import activate, load_known_part
from riverrun.storage.recovery.recovery import Recovered
from riverrun.storage.recovery.replay import load_snapshot, recall_earlier, replay, snapshot_path
from riverrun.storage.recovery.scan import Expectation, Learned, scan
from riverrun.storage.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from riverrun.storage.settings import LogSettings

_SNAPSHOTS_KEPT = 2
_NOTHING_NOTED = 2**63


class Upkeep:
    """Offsets are [start, end); what lies below the high watermark is committed."""

    refused_at = -1
    """The end of the log when the disk refused a batch last."""

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        recovered: Recovered,
        *,
        partition: TopicPartition,
        topic_id: UUID,
        path: str,
        settings: LogSettings,
        high_watermark: int,
        jitter: float,
    ) -> None:
        self._files = files
        self._open_files = open_files
        self.partition = partition
        self.topic_id = topic_id
        self.path = path
        self.settings = settings
        self.segments = recovered.segments
        """All of them, the oldest first; the last one is appended to."""
        self._bases = [segment.base_offset for segment in self.segments]
        self.active = self.segments[-1]
        self.start_offset = Offset(recovered.start_offset)
        self.end_offset = Offset(self.active.next_offset)
        self.high_watermark = Offset(
            min(max(high_watermark, recovered.start_offset), self.end_offset)
        )
        self.recovery_point = Offset(recovered.recovery_point)
        """Where checking begins after a crash: all below is durable, with indexes and snapshots."""
        self.flushed_offset = self.recovery_point
        """All batches below are durable."""
        self.size_bytes = sum(segment.size for segment in self.segments)
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self.damage = recovered.damage
        """In words, when something durable was lost or is found to be corrupt."""
        self.damaged_at = recovered.damaged_at
        """From where on it is not to be believed; None when all that is left of it is sound."""
        self.is_suspect = False
        """Whether somebody met damage in it and cannot say where: it is to be scrubbed soon."""
        self.cut_bytes = recovered.cut_bytes
        self.cleaned_to = Offset(0)
        """Where the part begins that compaction has not seen."""
        self.is_offline = False
        """Set when the disk cannot be trusted any more: nothing is accepted then."""
        self.is_new = False
        """Whether its directory was made by this process, and is not durable yet."""
        self.on_roll: Callable[[Upkeep], None] | None = None
        self.on_write_error: Callable[[OSError], None] | None = None
        self.on_damage: Callable[[Upkeep], None] | None = None
        self._jitter = jitter
        self._hints: dict[int, tuple[Segment, int]] = {}
        self._snapshots = dict.fromkeys(recovered.snapshots)
        self._due_snapshots: dict[int, bytes] = {}
        self._jobs: list[FlushJob] = []
        self._cut_back: dict[Segment, None] = {}
        """Segments that end in the remains of a failed write until they are synced."""
        self._generation = 0
        """Counts truncations: offsets mean other batches after one."""
        self._layout = 0
        """Counts truncations and compactions: positions mean other batches after one."""
        self._unsynced_directories = [] if recovered.is_durable else [os.path.dirname(path), path]
        self._apply_settings()

    @property
    def is_corrupt(self) -> bool:
        return self.damage is not None

    @property
    def layout(self) -> int:
        """Another number when positions in the files mean other batches than before."""
        return self._layout

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.epochs.latest

    @property
    def unflushed_bytes(self) -> int:
        first = max(bisect_right(self._bases, self.flushed_offset) - 1, 0)
        return sum(segment.size - segment.synced_size for segment in self.segments[first:])

    def configure(self, settings: LogSettings) -> None:
        """Live settings take effect with the next append."""
        self.settings = settings
        self._apply_settings()

    def _apply_settings(self) -> None:
        settings = self.settings
        age_max_ms = settings.segment_ms
        if settings.is_compacted:
            age_max_ms = min(age_max_ms, settings.max_compaction_lag_ms)  # KIP-354
        jitter_ms = min(settings.segment_jitter_ms, age_max_ms)
        self._segment_age_max_ms = age_max_ms - int(self._jitter * jitter_ms)
        self._segment_bytes_max = settings.segment_bytes
        activate(self.active, settings)

    # Rolling

    def roll_if_due(self, now_ms: int) -> bool:
        """Close an active segment that has become too old, though nobody appends."""
        segment = self.active
        if segment.size == 0:
            return False
        first = segment.first_timestamp
        begun = first if first is not None and first >= 0 else segment.created_ms
        if now_ms - begun <= self._segment_age_max_ms:
            return False
        self.roll(now_ms)
        return True

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and begin another at the end offset."""
        old = self.active
        segment = self.new_segment(self.end_offset)
        segment.created_ms = now_ms
        try:
            segment.open(create=True)
        except OSError as error:
            self.write_failed(error)
            raise
        activate(segment, self.settings)
        with contextlib.suppress(OSError):  # the disk is full: the next flush tries again
            old.rest(self._files)
            self._open_files.note_index(old)
        self._add(segment)
        self._due_snapshots[self.end_offset] = self.producers.snapshot()
        # Even if it is in the list: a sync that is under way may have been too early for this file.
        self._unsynced_directories.append(self.path)
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    def new_segment(self, base_offset: int) -> Segment:
        """One that is not part of the log yet."""
        return Segment(self._open_files, self.path, base_offset)

    def append_failed(self, segment: Segment, error: OSError) -> None:
        self._cut_back[segment] = None
        self.write_failed(error)

    def write_failed(self, error: OSError) -> None:
        self.refused_at = self.end_offset
        if self.on_write_error is not None:
            self.on_write_error(error)

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    # Flushing

    def begin_flush(self, *, whole: bool = False, closing: bool = False) -> FlushJob | None:
        """A job that makes everything durable that was appended so far; None if it is already.

        ``whole`` takes indexes, epochs and a producer snapshot along and moves the recovery point.
        """
        reached = self.recovery_point if whole else self.flushed_offset
        is_complete = reached >= self.end_offset and not self._cut_back
        if is_complete and not (whole and (self.epochs.is_dirty or self.is_new)):
            return None
        first = max(bisect_right(self._bases, reached) - 1, 0)
        # What a failed write left must not come back with a loss of power, for recovery would cut
        # there, and drop what was synced behind it.
        cut_back = self._cut_back
        if cut_back:
            first = min(first, *(self.segments.index(segment) for segment in cut_back))
        dirty = [(segment, segment.size) for segment in self.segments[first:]]
        job = FlushJob(
            self._files, offset=self.end_offset, generation=self._generation, segments=dirty,
            is_whole=whole,
        )  # fmt: skip
        job.directories = list(self._unsynced_directories)
        if self.is_new:
            job.index_paths.append(os.path.join(self.path, PARTITION_METADATA))
        if whole:
            self._write_indexes(dirty, closing=closing)
            self._add_side_files(job)
        job.handles = [
            segment.open().acquire() for segment, _ in dirty if segment.size or segment in cut_back
        ]
        self._cut_back = {}
        self._jobs.append(job)
        return job

    def _write_indexes(self, dirty: Sequence[tuple[Segment, int]], *, closing: bool) -> None:
        for segment, _ in dirty:
            if segment is not self.active:
                segment.rest(self._files)
        if closing:
            self.active.seal_times()
        self.active.write_indexes(self._files)

    def _add_side_files(self, job: FlushJob) -> None:
        for segment, _ in job.segments:
            job.index_paths += [segment.path_of(INDEX_SUFFIX), segment.path_of(TIME_INDEX_SUFFIX)]
            if segment.has_own_transactions:
                job.index_paths.append(segment.path_of(TRANSACTION_INDEX_SUFFIX))
        due = dict(self._due_snapshots)
        if self.end_offset not in self._snapshots and self.end_offset > self._bases[0]:
            due[self.end_offset] = self.producers.snapshot()
        job.snapshots = list(due)
        side_files = {snapshot_path(self.path, offset): data for offset, data in due.items()}
        if self.epochs.is_dirty:
            side_files[os.path.join(self.path, LEADER_EPOCHS)] = self.epochs.encode()
            self.epochs.is_dirty = False
            job.has_epochs = True
        job.side_files = side_files
        # Beside those at the segments' beginnings, which truncation needs, the newest will do.
        between = [offset for offset in self._snapshots if offset not in self._bases]
        stale = sorted(between)[:-_SNAPSHOTS_KEPT]
        stale += [offset for offset in self._snapshots if offset < self._bases[0]]
        for offset in dict.fromkeys(stale):
            del self._snapshots[offset]
            job.stale_paths.append(snapshot_path(self.path, offset))

    def flushed(self, job: FlushJob) -> None:
        """Account for a job that succeeded."""
        self._jobs.remove(job)
        job.release()
        for directory in job.directories:
            if directory in self._unsynced_directories:
                self._unsynced_directories.remove(directory)
        if job.generation != self._generation:
            return  # truncated meanwhile: the offsets may mean other batches now
        self.is_new = False
        for segment, size in job.segments:
            segment.synced_size = max(segment.synced_size, size)
        self.flushed_offset = max(self.flushed_offset, Offset(job.offset))
        if job.is_whole:
            self.recovery_point = max(self.recovery_point, Offset(job.offset))
            for offset in job.snapshots:
                self._due_snapshots.pop(offset, None)
                self._snapshots[offset] = None
        elif job.has_epochs:
            self.epochs.is_dirty = True

    def flush_failed(self, job: FlushJob) -> None:
        """A sync failed: nothing is known, and nothing may be tried again."""
        self._jobs.remove(job)
        job.release()
        self.epochs.is_dirty |= job.has_epochs

    # Discarding

    def delete_records_before(self, offset: int) -> None:
        """Let the log start later. The space is freed when whole segments are below."""
        if not 0 <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition "
                f"{self.partition} since it is larger than the high watermark "
                f"{self.high_watermark}",
            )
        if offset > self.start_offset:
            self.start_offset = Offset(offset)
            self.epochs.truncate_start(offset)
            self._hints.clear()

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Drop what is too old, too much or deleted; their files bear ``.deleted`` and may go."""
        count = discardable(
            self.segments, self.settings, now_ms=now_ms, start_offset=self.start_offset,
            high_watermark=self.high_watermark,
        )  # fmt: skip
        if count == 0:
            return []
        if count == len(self.segments):
            self.roll(now_ms)
        if self.producers.known:
            # What they wrote last must be known after a crash too, or their next batch would seem
            # out of order, and a retry new. The flush that follows a roll stores it.
            while count and self.segments[count - 1].next_offset > self.recovery_point:
                count -= 1
        dropped = self.segments[:count]
        self._take_out(0, count)
        self.start_offset = max(self.start_offset, Offset(self.segments[0].base_offset))
        self.epochs.truncate_start(self.start_offset)
        return dropped

    def _take_out(self, first: int, stop: int) -> None:
        """Remove segments, and rename their files so that a restart does not find them."""
        for segment in self.segments[first:stop]:
            self.size_bytes -= segment.size
            self._cut_back.pop(segment, None)
            segment.close()
            for path in segment.paths():
                if self._files.exists(path):
                    self._files.rename(path, path + DELETED_SUFFIX)
        self._layout += 1
        del self.segments[first:stop]
        del self._bases[first:stop]
        self._hints.clear()

    # Replacing, by compaction: see ``swap``

    def find_run(self, bases: Sequence[int]) -> int | None:
        """Where these segments stand in a row, none of them the active one.

        Nowhere in a log that was deleted: another may have its name by now, and files in its place.
        """
        if self.is_offline or bases[0] not in self._bases:
            return None
        first = self._bases.index(bases[0])
        stop = first + len(bases)
        is_run = self._bases[first:stop] == list(bases) and stop < len(self._bases)
        return first if is_run else None

    def replace(self, first: int, count: int, segment: Segment) -> list[Segment]:
        """Put one segment in the place of some; their files are renamed as in retention."""
        old = self.segments[first : first + count]
        segment.next_offset = old[-1].next_offset
        segment.created_ms = old[-1].created_ms
        self._take_out(first, first + count)
        self.segments.insert(first, segment)
        self._bases.insert(first, segment.base_offset)
        self.size_bytes += segment.size
        return old

    def layout_changed(self) -> None:
        """Files have other names now: reads that are under way must begin again."""
        self._layout += 1

    # Truncating

    def lower_recovery_point(self, offset: int) -> None:
        """What lies behind is about to change; what is being flushed no longer counts."""
        self._generation += 1
        self.recovery_point = min(self.recovery_point, Offset(offset))
        self.flushed_offset = min(self.flushed_offset, Offset(offset))

    def truncate_to(self, offset: int) -> None:
        """Forget batches from the one with this offset on. See ``LogRunner.truncate``."""
        if offset >= self.end_offset:
            # A leader that resigned before it wrote anything has an epoch that begins here. Its
            # successor knows nothing of it, and would find our history divergent for ever.
            self.epochs.truncate_end(self.end_offset)
            return
        if offset <= self._bases[0]:
            self.truncate_fully_and_start_at(offset)
            return
        self._generation += 1
        self._layout += 1
        self.active.write_indexes(self._files, exactly=True)
        last = bisect_left(self._bases, offset) - 1
        self._take_out(last + 1, len(self.segments))
        self._unsynced_directories.append(self.path)
        segment = self.active = self.segments[last]
        self.size_bytes -= segment.size
        size = segment.size
        file = segment.open().file
        load_known_part(self._files, file, segment, self.settings, trusted_offset=offset)
        nothing = Learned(Producers(), LeaderEpochs(), note_from=_NOTHING_NOTED, seen_ms=0)
        keep = Expectation(below=offset)
        scan(file, segment, nothing, start=segment.size, size=size, expectation=keep)
        file.truncate(segment.size)
        segment.synced_size = min(segment.synced_size, segment.size)
        segment.checked_from = min(segment.checked_from, segment.size)
        segment.write_indexes(self._files, exactly=True)
        self.size_bytes += segment.size
        self._end_at(segment.next_offset)
        for known in [known for known in self._snapshots if known > self.end_offset]:
            self._drop_snapshot(known)
        if not self.producers.roll_back(self.end_offset):
            self._rebuild_producers()
        if self.end_offset < self.start_offset:
            self.truncate_fully_and_start_at(self.start_offset)  # nothing readable is left

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything and begin again at an offset."""
        self._generation += 1
        self._layout += 1
        self.damage = self.damaged_at = None
        self._take_out(0, len(self.segments))
        for known in list(self._snapshots):
            self._drop_snapshot(known)
        segment = self.new_segment(offset)
        segment.open(create=True)
        self._add(segment)
        self._unsynced_directories.append(self.path)
        self._apply_settings()
        self.start_offset = Offset(offset)
        self.size_bytes = 0
        self._end_at(offset)
        self.high_watermark = self.flushed_offset = self.recovery_point = Offset(offset)
        self.epochs.clear()
        self.producers = Producers()

    def _end_at(self, end: int) -> None:
        self.end_offset = Offset(end)
        if self.damaged_at is not None and end <= self.damaged_at:
            self.damage = self.damaged_at = None
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.flushed_offset = min(self.flushed_offset, self.end_offset)
        self.recovery_point = min(self.recovery_point, self.end_offset)
        # What comes to lie there now was never compacted, though the offsets were.
        self.cleaned_to = min(self.cleaned_to, self.end_offset)
        self.epochs.truncate_end(end)
        self._hints.clear()
        self._due_snapshots = {
            offset: data for offset, data in self._due_snapshots.items() if offset <= end
        }

    def _drop_snapshot(self, offset: int) -> None:
        del self._snapshots[offset]
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(snapshot_path(self.path, offset))

    def _rebuild_producers(self) -> None:
        """Memory does not reach back far enough: start from a snapshot, and read the log."""
        seen_ms = max((known.seen_ms for known in self.producers.known.values()), default=0)
        found = load_snapshot(self._files, self.path, self._snapshots, seen_ms)
        for offset in sorted(self._due_snapshots, reverse=True):
            if found is None or offset > found[1]:
                found = Producers.from_snapshot(self._due_snapshots[offset], seen_ms), offset
        producers, noted = found if found is not None else (Producers(), self._bases[0])
        learned = Learned(producers, LeaderEpochs(), note_from=noted, seen_ms=seen_ms)
        replay(self._files, self.segments, learned, start=noted, end=self.end_offset)
        recall_earlier(self._files, self.segments, producers, noted)
        self.producers = producers

    # Closing

    def close(self) -> None:
        """Close the files. What is not flushed by then may be lost with the power."""
        for segment in self.segments:
            segment.close()

    def discard(self) -> None:
        """The log goes away with its directory; jobs that are under way come to nothing."""
        self.is_offline = True
        self._generation += 1
        self._layout += 1
        self.close()
