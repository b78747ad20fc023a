"""Flushing a log: which files to sync, and how far the log is durable afterwards.

``LogFlusher.begin`` returns a ``FlushJob`` for a thread. The job has values and open files of its
own. A failed sync is never retried: the kernel may have dropped the dirty pages, and the next sync
would succeed without them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from riverrun.model.ids import Offset
from riverrun.ports.files import Files, write_atomically
from riverrun.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from riverrun.storage.leader_epochs import LeaderEpochs
from riverrun.storage.producer_snapshots import ProducerSnapshots
from riverrun.storage.producers import Producers
from riverrun.storage.recovery.log_recovery import RecoveredLog
from riverrun.storage.segment.open_files import Handle
from riverrun.storage.segment.segment import (
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
)
from riverrun.storage.segment.segments import Segments

if TYPE_CHECKING:
    from riverrun.storage.log import Log


class SideFiles:
    """The files beside the segments that a whole flush writes."""

    def __init__(
        self, contents: Mapping[str, bytes], snapshots: Sequence[int], stale_paths: Sequence[str]
    ) -> None:
        self.contents = contents
        self.snapshots = snapshots
        """Offsets of the producer snapshots among them."""
        self.stale_paths = stale_paths
        """Snapshots to remove."""


class FlushJob:
    """``run`` in a thread, then ``Log.flushed`` or ``Log.flush_failed`` on the event loop."""

    def __init__(
        self,
        files: Files,
        *,
        offset: int,
        generation: int,
        segments: Sequence[tuple[Segment, int]],
        handles: Sequence[Handle],
        index_paths: Sequence[str],
        directories: Sequence[str],
        side_files: SideFiles | None,
        has_epochs: bool,
    ) -> None:
        self._files = files
        self._handles = handles
        self._index_paths = index_paths
        self.offset = offset
        """Everything below it is durable when the job is done."""
        self.generation = generation
        self.segments = segments
        """Each segment with the size that the job makes durable."""
        self.directories = directories
        self._synced: tuple[str, ...] = ()
        self.side_files = side_files
        """Present in whole flushes: recovery may then start at the job's offset."""
        self.has_epochs = has_epochs
        self.has_synced = False
        """Whether the batches are durable, though the side files may not be."""
        self.has_side_files = False
        """Whether the side files are written."""
        self.is_abandoned = False
        """Set when the log is deleted: a new log of the same name may use the directory."""

    def skip_directory(self, path: str) -> None:
        """The directory was synced since the log was created."""
        self._synced = (path,)

    def run(self) -> None:
        for handle in self._handles:
            handle.file.sync()
        for path in self._index_paths:
            # Truncation or retention may have removed the file. Then there is nothing to sync.
            with (
                contextlib.suppress(FileNotFoundError),
                contextlib.closing(self._files.open(path)) as file,
            ):
                file.sync()
        for path in dict.fromkeys(self.directories):
            if path not in self._synced:
                self._files.sync_directory(path)
        self.has_synced = True
        if self.side_files is not None:
            self._write(self.side_files)

    def _write(self, side_files: SideFiles) -> None:
        for path, data in side_files.contents.items():
            if self.is_abandoned:
                return
            write_atomically(self._files, path, data)
        for path in side_files.stale_paths:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path)
        self.has_side_files = True

    def release(self) -> None:
        handles, self._handles = self._handles, ()
        for handle in handles:
            handle.release()


class LogFlusher:
    """Tracks what of one log is durable."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: Segments,
        snapshots: ProducerSnapshots,
        recovered: RecoveredLog,
        is_metadata_durable: bool,
    ) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments
        self._snapshots = snapshots
        self.recovery_point = Offset(recovered.recovery_point)
        """Recovery starts here after a crash: all below is durable, with indexes and snapshots."""
        self.flushed_offset = self.recovery_point
        """All batches below are durable."""
        self.is_metadata_durable = is_metadata_durable
        """Whether ``partition.metadata`` is known to be synced."""
        self._unsynced_directories = (
            [] if recovered.is_durable else [os.path.dirname(directory), directory]
        )
        self._torn: dict[Segment, None] = {}
        """Segments that a failed write may have extended, until they are synced."""
        self._generation = 0
        """Counts truncations: afterwards, an offset can belong to another batch."""
        self._jobs: list[FlushJob] = []

    @property
    def unflushed_bytes(self) -> int:
        dirty = self._segments[self._segments.place_of(self.flushed_offset) :]
        return sum(segment.size - segment.synced_size for segment in dirty)

    def directory_changed(self) -> None:
        # Even if it is in the list: a running sync may have been too early for the new file.
        self._unsynced_directories.append(self._directory)

    def write_failed(self, segment: Segment) -> None:
        self._torn[segment] = None

    def begin(
        self,
        end_offset: int,
        epochs: LeaderEpochs,
        producers: Producers,
        *,
        whole: bool,
        closing: bool,
    ) -> FlushJob | None:
        """A job that makes the log durable up to its end; None if it is already."""
        reached = self.recovery_point if whole else self.flushed_offset
        torn = self._torn and [
            place for place, segment in enumerate(self._segments) if segment in self._torn
        ]
        is_complete = reached >= end_offset and not torn
        if is_complete and not (whole and (epochs.is_dirty or not self.is_metadata_durable)):
            return None
        # Bytes of a failed write must not reappear after a power failure: recovery would
        # truncate the log there, and drop the flushed batches behind them.
        first = min(self._segments.place_of(reached), *torn, len(self._segments))
        dirty = self._segments[first:]
        index_paths = []
        if not self.is_metadata_durable:
            index_paths.append(os.path.join(self._directory, PARTITION_METADATA))
        if whole:
            self._write_indexes(dirty, closing=closing)
            index_paths += _index_paths(dirty)
        opened = [segment for segment in dirty if segment.size or segment in self._torn]
        has_epochs = whole and epochs.is_dirty
        job = FlushJob(
            self._files,
            offset=end_offset,
            generation=self._generation,
            segments=[(segment, segment.size) for segment in dirty],
            handles=[segment.open().acquire() for segment in opened],
            index_paths=index_paths,
            directories=list(self._unsynced_directories),
            side_files=self._side_files(end_offset, epochs, producers) if whole else None,
            has_epochs=has_epochs,
        )
        if has_epochs:
            epochs.is_dirty = False
        self._torn = {}
        self._jobs.append(job)
        return job

    def _write_indexes(self, dirty: Sequence[Segment], *, closing: bool) -> None:
        active = self._segments.active
        for segment in dirty:
            if segment is not active:
                segment.close_indexes(self._files)
        if closing:
            active.seal_time_index()
        active.write_indexes(self._files)

    def _side_files(self, end_offset: int, epochs: LeaderEpochs, producers: Producers) -> SideFiles:
        contents, snapshots = self._snapshots.take_due(end_offset, producers, self._segments)
        if epochs.is_dirty:
            contents[os.path.join(self._directory, LEADER_EPOCHS)] = epochs.encode()
        return SideFiles(contents, snapshots, self._snapshots.take_stale(self._segments))

    def finish(self, job: FlushJob, epochs: LeaderEpochs) -> None:
        """Account for a job that succeeded."""
        self._jobs.remove(job)
        job.release()
        for directory in job.directories:
            if directory in self._unsynced_directories:
                self._unsynced_directories.remove(directory)
        if job.generation != self._generation:
            return  # truncated meanwhile: the offsets may belong to other batches
        self.is_metadata_durable = True
        for segment, size in job.segments:
            segment.synced_size = max(segment.synced_size, size)
        self.flushed_offset = max(self.flushed_offset, Offset(job.offset))
        if job.side_files is not None and job.has_side_files:
            self.recovery_point = max(self.recovery_point, Offset(job.offset))
            self._snapshots.stored(job.side_files.snapshots)
        elif job.has_epochs:
            epochs.is_dirty = True

    def fail(self, job: FlushJob, epochs: LeaderEpochs) -> None:
        """Account for a job whose sync failed. It must not be retried."""
        self._jobs.remove(job)
        job.release()
        epochs.is_dirty |= job.has_epochs

    # Truncating

    def lower(self, offset: int) -> None:
        """Batches from an offset on are about to change: running jobs no longer count."""
        self._generation += 1
        self.cap(offset)

    def cap(self, offset: int) -> None:
        self.recovery_point = min(self.recovery_point, Offset(offset))
        self.flushed_offset = min(self.flushed_offset, Offset(offset))

    def restart(self, offset: int) -> None:
        """The log is empty and starts at an offset."""
        self._generation += 1
        self.recovery_point = self.flushed_offset = Offset(offset)

    def abandon(self) -> None:
        """The log is deleted: running jobs write no more side files."""
        self._generation += 1
        for job in self._jobs:
            job.is_abandoned = True


def _index_paths(segments: Sequence[Segment]) -> list[str]:
    paths = []
    for segment in segments:
        if segment.size:
            paths += [segment.path_of(INDEX_SUFFIX), segment.path_of(TIME_INDEX_SUFFIX)]
        if segment.has_own_transactions:
            paths.append(segment.path_of(TRANSACTION_INDEX_SUFFIX))
    return paths


def largest_unflushed(logs: Iterable[Log], bytes_max: int) -> list[Log]:
    """The largest logs, so that the unflushed bytes of the others are within a limit."""
    by_size = sorted(((log.unflushed_bytes, log) for log in logs), key=lambda pair: -pair[0])
    total = sum(size for size, _ in by_size)
    chosen = []
    for size, log in by_size:
        if total <= bytes_max:
            break
        chosen.append(log)
        total -= size
    return chosen


def unflushed_below(logs: Iterable[Log], end_offsets: Iterable[int]) -> list[Log]:
    """The logs whose flush found no descriptor or no space. It is repeated in a later tick."""
    return [
        log
        for log, end_offset in zip(logs, end_offsets, strict=True)
        if log.recovery_point < min(end_offset, log.end_offset) and not log.is_offline
    ]
