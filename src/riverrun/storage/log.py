"""One partition's log: appends, reads, and the invariants between offsets, segments and producers.

Everything here runs on the event loop and never waits for a disk. Writes go to the page cache.
Reads come from it, or are returned as a ``ColdRead`` for a thread. Syncs are returned as a
``FlushJob`` for a thread. The caller decides whether an append is allowed, and sets the
high watermark. If an append raises ``OSError``, no batch was appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset, TopicPartition
from riverrun.model.invariants import InvariantViolation
from riverrun.model.settings import INT_MAX
from riverrun.ports.files import Buffer, Files
from riverrun.records.batch import (
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
    batches,
    read_header,
    stamp,
)
from riverrun.records.validate import check_produced
from riverrun.storage.append_policy import Appended, AppendPolicy, duplicate_of, validate_received
from riverrun.storage.cleaning.retention import discardable
from riverrun.storage.flush import FlushJob, LogFlusher
from riverrun.storage.log_reader import LogReader
from riverrun.storage.markers import NewMarker
from riverrun.storage.producer_snapshots import ProducerSnapshots
from riverrun.storage.producers import AppendOrigin, Producers
from riverrun.storage.recovery.log_recovery import RecoveredLog
from riverrun.storage.segment.index import AbortedTransaction
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.reader import ColdRead, Slice
from riverrun.storage.segment.segment import Segment
from riverrun.storage.segment.segments import Segments
from riverrun.storage.segment.time_search import OffsetAt
from riverrun.storage.settings import LogSettings

__all__ = ["AppendOrigin", "Appended", "Log"]
_logger = structlog.get_logger("riverrun.storage")


class Log:
    """Offsets are [start, end); records below the high watermark are committed."""

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        recovered: RecoveredLog,
        *,
        partition: TopicPartition,
        topic_id: UUID,
        path: str,
        settings: LogSettings,
        high_watermark: int,
        jitter: float,
        is_metadata_durable: bool = True,
        on_roll: Callable[[Log], None] = lambda _: None,
        on_write_error: Callable[[OSError], None] = lambda _: None,
    ) -> None:
        self._files = files
        self.partition = partition
        self.topic_id = topic_id
        self.path = path
        self.segments = Segments(files, open_files, path, recovered.segments)
        self._snapshots = ProducerSnapshots(files, path, recovered.snapshots)
        self._flusher = LogFlusher(
            files, path, self.segments, self._snapshots, recovered, is_metadata_durable
        )
        self._reader = LogReader(files, open_files, self.segments, self.read, self.report_damage)
        self.start_offset = Offset(recovered.start_offset)
        self.end_offset = Offset(self.segments.active.next_offset)
        self.high_watermark = Offset(min(max(high_watermark, self.start_offset), self.end_offset))
        self.epochs = recovered.epochs
        self.producers = recovered.producers
        self._snapshots.restore_ending(self)
        self.damage = recovered.damage
        """The error text when durable data was lost or is corrupt."""
        self.damaged_at = recovered.damaged_at
        """The first corrupt offset; None when the corrupt part was removed."""
        self.is_suspect = False
        """Whether damage was seen at an unknown place, so that the log is scrubbed soon."""
        self.on_damage: Callable[[Log], None] | None = None
        self.cut_bytes = recovered.cut_bytes  # removed by recovery
        self.cleaned_to = Offset(0)
        """Where the part starts that was not compacted yet."""
        self.is_offline = False  # set when the disk fails or the log is deleted
        self._on_roll = on_roll
        self._on_write_error = on_write_error
        self._jitter = jitter
        self.configure(settings)

    def configure(self, settings: LogSettings) -> None:
        """Live settings take effect with the next append."""
        self.settings = settings
        self._policy = AppendPolicy(settings, self._jitter)
        self.segments.active.activate(settings)

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def is_corrupt(self) -> bool:
        return self.damage is not None

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.epochs.latest

    # Appending

    def append_as_leader(
        self,
        batch: bytearray | memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Appended:
        """Validate one batch, assign its offsets and write it.

        Raises KafkaError for an invalid batch. A duplicate returns the offsets of the original, and
        is acknowledged like the original: when it is committed.
        """
        self._check_online()
        policy = self._policy
        stored: Buffer = batch
        if origin is AppendOrigin.CLIENT:
            stored, header = check_produced(batch, policy.limits, now_ms)
        else:
            header = read_header(batch)
        if header.producer_id >= 0:
            known = self.producers.check(header, origin)
            if known is not None:
                return duplicate_of(known)
        assert not isinstance(stored, bytes), "a batch must be writable to be stamped"
        try:
            assert leader_epoch >= self.epochs.latest, f"{leader_epoch} < {self.epochs.latest}"
            base = self.end_offset
            last = base + header.last_offset_delta
            size = header.length + OVERHEAD_BYTES
            stamp(stored, 0, base, leader_epoch)
            segment = self.segments.active
            if policy.must_roll(segment, size, last, header.max_timestamp, now_ms):
                segment = self.roll(now_ms)
            self._write(segment, stored)
            segment.note(size, last, header.max_timestamp)
            if header.producer_id >= 0:
                self._replay_producer(segment, header, base, stored, now_ms)
            if segment.index_is_due:
                segment.try_write_indexes(self._files)
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base)
            elif base == self.epochs.begun_at:
                self.epochs.is_dirty = True
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error
        self.end_offset = Offset(last + 1)
        return Appended(base, Offset(last), now_ms if policy.has_log_append_time else -1)

    def append_as_follower(
        self,
        data: Buffer,
        *,
        epoch_max: int = INT_MAX,
        batches_max: int = INT_MAX,
        bytes_max: int = INT_MAX,
    ) -> Appended | None:
        """Append a leader's batches unchanged; None when there is no whole batch to append.

        Appends at most so many batches and bytes, but at least one, so that callers can yield to
        the event loop. Stops before an epoch above ``epoch_max``, which another leader wrote.
        Raises KafkaError CORRUPT_MESSAGE before anything is written.
        """
        self._check_online()
        try:
            found, stop, newest = validate_received(
                data, self.end_offset, epoch_max, batches_max, bytes_max
            )
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if not found:
            return None
        return self._append_stamped(found, memoryview(data)[:stop], newest)

    def append_markers(
        self, markers: Sequence[NewMarker], *, leader_epoch: LeaderEpoch, now_ms: int
    ) -> Appended:
        """Append the markers of different producers in one write, after ``check_marker``."""
        self._check_online()
        data = bytearray()
        for place, marker in enumerate(markers):
            data += marker.encode(self.end_offset + place, leader_epoch, now_ms)
        found = [header for _, header in batches(data)]
        return self._append_stamped(found, memoryview(data), now_ms)

    def _append_stamped(self, found: list[BatchHeader], view: memoryview, newest: int) -> Appended:
        """Write batches that have their offsets and leader epochs."""
        stop, last = len(view), found[-1].last_offset
        try:
            segment = self.segments.active
            if last > segment.offset_max:
                # Compaction left a gap that is larger than the indexes of one segment can express.
                base = Offset(found[0].base_offset)
                segment = self._roll_at(base, max(newest, segment.created_ms))
                self.end_offset = base
            elif self._policy.must_roll(segment, stop, last, newest, 0):
                segment = self.roll(max(newest, segment.created_ms))
            self._write(segment, view)
            self._replay_all(segment, found, view)
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error
        self.end_offset = Offset(last + 1)
        return Appended(Offset(found[0].base_offset), Offset(last), -1, size_bytes=stop)

    def _replay_all(self, segment: Segment, found: list[BatchHeader], view: memoryview) -> None:
        """Account for batches that were written."""
        note, epochs, at = segment.note, self.epochs, 0
        for header in found:
            base, length, epoch, _, _, _, delta, _, timestamp, producer_id, _, _, _ = header
            size = length + OVERHEAD_BYTES
            note(size, base + delta, timestamp)
            if producer_id >= 0:
                self._replay_producer(segment, header, base, view[at : at + size], timestamp)
            if epoch > epochs.latest:
                epochs.assign(epoch, base)
            elif base == epochs.begun_at:
                epochs.is_dirty = True
            at += size
        if segment.index_is_due:
            segment.try_write_indexes(self._files)

    def _replay_producer(
        self, segment: Segment, header: BatchHeader, base: int, batch: Buffer, seen_ms: int
    ) -> None:
        aborted = self.producers.replay(header, base, batch, seen_ms)
        if aborted is not None:
            segment.note_transaction(aborted)

    def _write(self, segment: Segment, data: Buffer) -> None:
        try:
            segment.write(data)
        except OSError as error:
            self._flusher.write_failed(segment)
            self._on_write_error(error)
            raise

    # Rolling

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and start another at the end offset."""
        return self._roll_at(self.end_offset, now_ms)

    def _roll_at(self, base_offset: Offset, now_ms: int) -> Segment:
        self.segments.active.note_markers(self.producers.has_markers)
        try:
            segment = self.segments.roll(base_offset, now_ms, self.settings)
        except OSError as error:
            self._on_write_error(error)
            raise
        self._snapshots.add(base_offset, self.producers)
        self._flusher.directory_changed()
        self._on_roll(self)
        return segment

    def roll_if_due(self, now_ms: int) -> None:
        """Close an active segment that has become too old while nothing was appended."""
        if self._policy.is_too_old(self.segments.active, now_ms):
            self.roll(now_ms)

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, end: int, at_least_one: bool = True
    ) -> Slice | ColdRead:
        """Whole batches from the one with an offset on, and below ``end``.

        Raises KafkaError: OFFSET_OUT_OF_RANGE, or CORRUPT_MESSAGE instead of returning damage.
        """
        self._check_online()
        if not self.start_offset <= offset <= self.end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.partition}, but we "
                f"only have log segments from offset {self.start_offset} up to {self.end_offset}",
            )
        if offset >= end:
            return Slice(b"", offset)
        try:
            return self._reader.read(offset, max_bytes, end, at_least_one)
        except CorruptBatch as error:
            self.report_damage(str(error), offset)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        except OSError as error:
            self._on_write_error(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    def _check_online(self) -> None:
        """After a deletion, the path may belong to a new log of the same name."""
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The log is offline")

    def report_damage(self, error: str, offset: int) -> None:
        """The batch that holds this offset, or should hold it, is corrupt."""
        if self.damage is None:
            _logger.error("log damaged", partition=str(self.partition), offset=offset, error=error)
        self.damage = error
        known = self.damaged_at
        self.damaged_at = offset if known is None else min(known, offset)
        if self.on_damage is not None:
            self.on_damage(self)

    # Offsets

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what read_committed consumers may read: no transaction below it is open."""
        unstable = self.producers.first_unstable
        if unstable is None:
            return self.high_watermark
        # DeleteRecords and retention may have removed the start of an open transaction.
        return min(self.high_watermark, max(Offset(unstable), self.start_offset))

    def advance_high_watermark(self, offset: int) -> None:
        assert offset <= self.end_offset, f"{offset} is above the end {self.end_offset}"
        if offset > self.high_watermark:
            self.high_watermark = Offset(offset)
            self.producers.settle(offset)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """Start a leader epoch at the end of the log."""
        self.epochs.begin(epoch, self.end_offset)

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_of(epoch, self.end_offset)

    def aborted_transactions(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions with records in [start, end), in the order of their starts."""
        return self._reader.aborted_transactions(start, end)

    def offset_for_timestamp(self, timestamp: int) -> OffsetAt | None:
        """The first committed record that is not earlier. May wait for the disk."""
        return self._reader.search(timestamp, self._readable_range)

    def offset_of_max_timestamp(self) -> OffsetAt | None:
        """The first committed record with the largest timestamp. May wait for the disk."""
        return self._reader.search(None, self._readable_range)

    def _readable_range(self) -> tuple[Offset, Offset]:
        self._check_online()
        return self.start_offset, self.high_watermark

    # Flushing

    @property
    def flushed_offset(self) -> Offset:
        """All batches below are durable."""
        return self._flusher.flushed_offset

    @property
    def recovery_point(self) -> Offset:
        """Recovery starts here after a crash: all below is durable, also indexes and snapshots."""
        return self._flusher.recovery_point

    @property
    def unflushed_bytes(self) -> int:
        return self._flusher.unflushed_bytes

    def begin_flush(self, *, whole: bool = False, closing: bool = False) -> FlushJob | None:
        """A job that makes everything appended so far durable; None if it is already.

        ``whole`` includes indexes, epochs and a producer snapshot, and moves the recovery point.
        """
        if closing:
            self.segments.active.note_markers(self.producers.has_markers)
        return self._flusher.begin(
            self.end_offset, self.epochs, self.producers, whole=whole, closing=closing
        )

    def flushed(self, job: FlushJob) -> None:
        """Account for a job that succeeded."""
        self._flusher.finish(job, self.epochs)

    def flush_failed(self, job: FlushJob) -> None:
        """Account for a job whose sync failed. It must not be retried."""
        self._flusher.fail(job, self.epochs)

    def lower_recovery_point(self, offset: int) -> None:
        """Batches from an offset on are about to change: running flushes no longer count."""
        self._flusher.lower(offset)

    def adopt_topic_id(self, topic_id: UUID) -> None:
        """Note a topic id that was just written to ``partition.metadata``."""
        self.topic_id = topic_id
        self._flusher.is_metadata_durable = False

    # Discarding

    def delete_records_before(self, offset: int) -> None:
        """Raise the start offset (DeleteRecords). Whole segments below it are discarded later."""
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

    def enforce_retention(self, now_ms: int) -> list[Segment]:
        """Discard segments that are too old, too large in sum, or below the start offset.

        Returns them. Their files have the suffix ``.deleted`` and may be removed.
        """
        count = discardable(
            self.segments, self.settings, now_ms, self.start_offset, self.high_watermark
        )
        if count == 0:
            return []
        if count == len(self.segments):
            self.roll(now_ms)
        if self.producers.entries:
            # A crash must not lose their last batches, or the next batch would seem out of order
            # and a retry new. The flush after a roll stores a snapshot.
            while count and self.segments[count - 1].next_offset > self.recovery_point:
                count -= 1
        discarded = self.segments.discard(count)
        self.start_offset = max(self.start_offset, Offset(self.segments.base_offset))
        self.epochs.truncate_start(self.start_offset)
        return discarded

    # Truncating

    def truncate_to(self, offset: int) -> None:
        """Remove batches from the one with this offset on. See ``LogManager.truncate``."""
        if offset >= self.end_offset:
            # A leader that resigned before it appended has an epoch that starts here. The next
            # leader does not have it, and would find our log divergent in every comparison.
            self.epochs.truncate_end(self.end_offset)
            return
        if offset < self.segments.base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        self._flusher.lower(offset)
        self._flusher.directory_changed()
        self.segments.truncate(offset, self.settings)
        self._end_at(self.segments.active.next_offset)
        self._snapshots.truncate(self.end_offset)
        if not self.producers.roll_back(self.end_offset):
            seen_ms = max((known.seen_ms for known in self.producers.entries.values()), default=0)
            self.producers = self._snapshots.rebuild(self.segments, self.end_offset, seen_ms)
            self._snapshots.restore_ending(self)
        if self.end_offset < self.start_offset:
            self.truncate_fully_and_start_at(self.start_offset)  # nothing readable is left

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything and start again at an offset."""
        self._flusher.lower(offset)
        self._flusher.directory_changed()
        self.damage = self.damaged_at = None
        self.segments.restart(offset, self.settings)
        self._snapshots.clear()
        self.start_offset = self.high_watermark = Offset(offset)
        self._end_at(offset)
        self._flusher.restart(offset)
        self.epochs.clear()
        self.producers = Producers()

    def _end_at(self, end: int) -> None:
        self.end_offset = Offset(end)
        if self.damaged_at is not None and end <= self.damaged_at:
            self.damage = self.damaged_at = None
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self._flusher.cap(end)
        # Batches that are appended here later were not compacted, though the offsets were.
        self.cleaned_to = min(self.cleaned_to, self.end_offset)
        self.epochs.truncate_end(end)

    # Closing

    def close(self) -> None:
        self.segments.close()

    def discard(self) -> None:
        """Go offline before the directory is deleted. Running jobs and reads have no effect."""
        self.is_offline = True
        self._flusher.abandon()
        self.segments.invalidate()
        self.close()
