"""One partition's log: batches in, batches out, and what must hold between them.

Everything here runs on the event loop and never waits for a disk: writes go to the page cache,
reads come from it or are handed out as ``ColdRead``, and what makes data durable is handed out as
``FlushJob``. Who may append, and when a record is committed, is decided elsewhere; the log is told
the high watermark. When ``append`` raises ``OSError``, nothing has changed.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from functools import partial
from typing import NamedTuple

import structlog

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.model.settings import INT_MAX
from riverrun.ports.files import Buffer
from riverrun.records.batch import (
    CONTROL_BIT,
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
    read_header,
    stamp,
)
from riverrun.records.compression import Compression
from riverrun.records.validate import Limits, check_produced
from riverrun.storage.flush import FlushJob
from riverrun.storage.index import AbortedTransaction
from riverrun.storage.lookup import OffsetAt, TimedView, first_at_or_after, latest
from riverrun.storage.producers import Origin
from riverrun.storage.reading import ColdRead, SegmentView, Slice, read_batches, sound_prefix
from riverrun.storage.received import sound_batches
from riverrun.storage.recovery.scan import read_marker
from riverrun.storage.segment import TIME_INDEX_SUFFIX, Segment
from riverrun.storage.settings import LogSettings
from riverrun.storage.upkeep import Upkeep

__all__ = [
    "AbortedTransaction",
    "Appended",
    "ColdRead",
    "FlushJob",
    "Log",
    "OffsetAt",
    "Origin",
    "Slice",
]

EPOCH_MAX = INT_MAX
_HINTS_MAX = 32
_logger = structlog.get_logger("riverrun.storage")


class Appended(NamedTuple):
    """Where a batch came to lie."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 unless the topic stamps the time of appending."""
    is_duplicate: bool = False
    size_bytes: int = 0
    """Of what a follower appended."""


class Log(Upkeep):
    """See ``Upkeep`` for offsets, flushing, retention and truncation."""

    # Appending

    def append_as_leader(
        self,
        batch: bytearray | memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Judge one batch, give it its offsets and write it.

        Raises KafkaError for what the producer did wrong. A batch that was appended before gives
        its first place, and is acknowledged like the original: when that is committed.
        """
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The data directory is offline")
        stored: Buffer = batch
        if origin is Origin.CLIENT:
            stored, header = check_produced(batch, self._limits, now_ms)
        else:
            header = read_header(batch)
        if header.producer_id >= 0:
            known = self._judge_producer(header, stored, origin)
            if known is not None:
                return known
        assert not isinstance(stored, bytes), "a batch must be writable to be stamped"
        try:
            assert leader_epoch >= self.epochs.latest, f"{leader_epoch} < {self.epochs.latest}"
            base = self.end_offset
            last = base + header.last_offset_delta
            size = header.length + OVERHEAD_BYTES
            stamp(stored, 0, base, leader_epoch)
            segment = self.active
            if (
                segment.size + size > self._segment_bytes_max
                or last > segment.offset_max
                or segment.is_full
                or self._is_aged(segment, header.max_timestamp, now_ms)
            ) and segment.size:
                segment = self.roll(now_ms)
            try:
                segment.write(stored)
            except OSError as error:
                self.append_failed(segment, error)
                raise
            segment.note(size, last, header.max_timestamp)
            self._account(segment, header, base, stored, now_ms)
            if leader_epoch > self.epochs.latest:
                self.epochs.assign(leader_epoch, base)
            elif base == self.epochs.begun_at:
                self.epochs.is_dirty = True
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error
        self.size_bytes += size
        self.end_offset = Offset(last + 1)
        return Appended(base, Offset(last), now_ms if self._has_log_append_time else -1)

    def append_as_follower(
        self,
        data: Buffer,
        *,
        epoch_max: int = EPOCH_MAX,
        batches_max: int = INT_MAX,
        bytes_max: int = INT_MAX,
    ) -> Appended | None:
        """Append what a leader sent, as it is; None when there is no whole batch to append.

        So many batches and bytes at most, but one batch at least, for whoever must not keep the
        loop; and none of an epoch above ``epoch_max``, which another leader wrote. Raises
        KafkaError CORRUPT_MESSAGE, before anything is written.
        """
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The data directory is offline")
        try:
            found, stop, newest = sound_batches(
                data, self.end_offset, epoch_max=epoch_max, batches_max=batches_max,
                bytes_max=bytes_max,
            )  # fmt: skip
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if not found:
            return None
        last = found[-1].last_offset
        try:
            segment = self.active
            if last > segment.offset_max:
                # Compaction left a gap that the indexes of this segment cannot span.
                segment = self._roll_over_gap(found[0].base_offset, max(newest, segment.created_ms))
            elif segment.size and (
                segment.size + stop > self._segment_bytes_max
                or segment.is_full
                or self._is_aged(segment, newest, 0)
            ):
                segment = self.roll(max(newest, segment.created_ms))
            view = memoryview(data)[:stop]
            try:
                segment.write(view)
            except OSError as error:
                self.append_failed(segment, error)
                raise
            self._account_all(segment, found, view)
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error
        self.size_bytes += stop
        self.end_offset = Offset(last + 1)
        return Appended(Offset(found[0].base_offset), Offset(last), -1, size_bytes=stop)

    def _account_all(self, segment: Segment, found: list[BatchHeader], view: memoryview) -> None:
        """What else changes with batches that were written as they came."""
        note, epochs, at = segment.note, self.epochs, 0
        for header in found:
            base, length, epoch, _, _, _, delta, _, timestamp, producer_id, _, _, _ = header
            size = length + OVERHEAD_BYTES
            note(size, base + delta, timestamp)
            if producer_id >= 0:
                self._note_producer(segment, header, base, view[at : at + size], timestamp)
            if epoch > epochs.latest:
                epochs.assign(epoch, base)
            at += size
        if segment.index_is_due:
            self._write_indexes_of(segment)

    def _roll_over_gap(self, base_offset: int, now_ms: int) -> Segment:
        end, self.end_offset = self.end_offset, Offset(base_offset)
        try:
            return self.roll(now_ms)
        except OSError:
            self.end_offset = end
            raise

    def _is_aged(self, segment: Segment, timestamp: int, now_ms: int) -> bool:
        """By the records' own time, as Kafka does, so that replicas roll alike."""
        first = segment.first_timestamp
        if first is not None and first >= 0:
            return timestamp - first > self._segment_age_max_ms
        return now_ms - segment.created_ms > self._segment_age_max_ms

    def _judge_producer(
        self, header: BatchHeader, batch: Buffer, origin: Origin
    ) -> Appended | None:
        if header.attributes & CONTROL_BIT:
            marker = read_marker(batch)
            if marker is not None:
                self.producers.refuse_stale_marker(header, marker)
            return None
        try:
            known = self.producers.judge(header, origin)
        except KafkaError as error:
            is_gap = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if not is_gap or self.refused_at != self.end_offset:
                raise
            # It follows one that found no room, and was sent before its producer heard of that. To
            # say that numbers are missing would make some begin a new epoch, in which they repeat
            # what waits for its acknowledgement elsewhere.
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, "No room for what came before"
            ) from error
        if known is None:
            return None
        # Kafka tells the time of a duplicate whatever the topic's kind of time is.
        first, last = Offset(known.first_offset), Offset(known.last_offset)
        return Appended(first, last, known.timestamp, True)

    def _account(
        self, segment: Segment, header: BatchHeader, base: int, batch: Buffer, seen_ms: int
    ) -> None:
        """What else changes with a batch that was written."""
        if header.producer_id >= 0:
            self._note_producer(segment, header, base, batch, seen_ms)
        if segment.index_is_due:
            self._write_indexes_of(segment)

    def _note_producer(
        self, segment: Segment, header: BatchHeader, base: int, batch: Buffer, seen_ms: int
    ) -> None:
        if not header.attributes & CONTROL_BIT:
            self.producers.note(header, base, seen_ms)
        elif (marker := read_marker(batch)) is not None:
            ended = self.producers.end_transaction(header, base, marker, seen_ms)
            if ended is not None:
                segment.note_transaction(ended)

    def _write_indexes_of(self, segment: Segment) -> None:
        # Entries stay in memory until they can be written; a full disk is met elsewhere.
        with contextlib.suppress(OSError):
            segment.write_indexes(self._files)

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, end: int, at_least_one: bool = True
    ) -> Slice | ColdRead:
        """Whole batches from the one with an offset on, and below ``end``.

        Raises KafkaError: OFFSET_OUT_OF_RANGE, or CORRUPT_MESSAGE rather than serve damage.
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
        hint = self._hints.get(offset)
        position: int | None
        if hint is not None and (hint[1] < hint[0].size or hint[0] is self.active):
            segment, position = hint
        else:
            segment = self.segments[bisect_right(self._bases, offset) - 1]
            position = 0 if offset == segment.base_offset else None
        try:
            while True:
                handle = segment.handle
                if handle is None and segment.is_warm:
                    handle = segment.open()
                found = None
                if handle is not None and (position is not None or segment.index is not None):
                    segment.is_recent = True
                    found = read_batches(
                        handle.file.read_cached_at, segment, offset, position,
                        max_bytes=max_bytes, end=end, at_least_one=at_least_one,
                    )  # fmt: skip
                if found is None:
                    return self._cold(segment, offset, position, max_bytes, end, at_least_one)
                at, result = found
                if result.data:
                    return self._checked(segment, at, result, offset)
                if at < segment.size or segment is self.active:
                    return Slice(b"", offset)
                # A compacted segment may end before its successor begins.
                segment = self.segments[self.segments.index(segment) + 1]
                position = 0
        except CorruptBatch as error:
            self.report_damage(str(error), offset)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        except OSError as error:
            self.write_failed(error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None

    def _check_online(self) -> None:
        """Where a log was deleted, the files in its place may be those of the next of its name."""
        if self.is_offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The log is offline")

    def _checked(self, segment: Segment, at: int, result: Slice, offset: int) -> Slice:
        """A batch that came from the disk is trusted after its CRC was seen to be right."""
        stop = at + len(result.data)
        if not segment.is_checked(at, stop):
            sound, next_offset = sound_prefix(result.data, offset, result.next_offset)
            segment.mark_checked(at, at + sound)
            if sound < len(result.data):
                if not sound:
                    raise CorruptBatch(f"the batch at {at} of {segment.path} is damaged")
                stop = at + sound
                result = Slice(memoryview(result.data)[:sound], next_offset)
        self._remember(result.next_offset, segment, stop)
        return result

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Where the reader goes on, so that it need not search."""
        hints = self._hints
        if offset not in hints:
            if len(hints) >= _HINTS_MAX:
                del hints[next(iter(hints))]
            hints[offset] = (segment, position)

    def report_damage(self, problem: str, offset: int) -> None:
        """The batch that holds this offset, or would hold it, cannot be believed."""
        if self.damage is None:
            _logger.error(
                "log damaged", partition=str(self.partition), offset=offset, problem=problem
            )
        self.damage = problem
        known = self.damaged_at
        self.damaged_at = offset if known is None else min(known, offset)
        if self.on_damage is not None:
            self.on_damage(self)

    def _cold(
        self, segment: Segment, offset: int, position: int | None, max_bytes: int, end: int,
        at_least_one: bool,
    ) -> ColdRead:  # fmt: skip
        views: list[SegmentView] = []
        for candidate in self.segments[self.segments.index(segment) :]:
            views.append(candidate.view())
            if len(views) > 1 and candidate.size:
                break
        handle = segment.handle
        segment.is_warm = True
        return ColdRead(
            self._files, views, handle.acquire() if handle is not None else None,
            offset=offset, position=position, max_bytes=max_bytes, end=end,
            at_least_one=at_least_one, interval_bytes=self.settings.index_interval_bytes,
            adopt=self._adopt, layout=self._layout, is_current=self._is_current,
            again=partial(
                self.read, offset, max_bytes=max_bytes, end=end, at_least_one=at_least_one
            ),
        )  # fmt: skip

    def _is_current(self, layout: int) -> bool:
        return layout == self._layout

    def _adopt(self, cold: ColdRead) -> None:
        if not cold.is_current:
            return  # truncated or compacted meanwhile: positions mean something else
        if cold.damage is not None:
            self.report_damage(cold.damage, cold.offset)
        for segment in self.segments:
            index = cold.indexes.get(segment.base_offset)
            if index is not None and segment.index is None:
                segment.index = index
                self._open_files.note_index(segment)
                with contextlib.suppress(OSError):
                    segment.write_indexes(self._files)
            if cold.checked is not None and cold.checked[0] == segment.base_offset:
                segment.mark_checked(cold.checked[1], cold.checked[2])
                self._remember(cold.next_offset, segment, cold.checked[2])

    # Offsets

    @property
    def last_stable_offset(self) -> Offset:
        """Up to where no transaction is open: what read_committed may read."""
        unstable = self.producers.first_unstable_offset()
        if unstable is None:
            return self.high_watermark
        return min(self.high_watermark, Offset(unstable))

    def advance_high_watermark(self, offset: int) -> None:
        assert offset <= self.end_offset, f"{offset} is above the end {self.end_offset}"
        if offset > self.high_watermark:
            self.high_watermark = Offset(offset)
            self.producers.settle(offset)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """A leader's epoch begins at the end of the log."""
        self.epochs.begin(epoch, self.end_offset)

    def epoch_end(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_of(epoch, self.end_offset)

    def aborted_transactions(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Those that a reader of [start, end) must know, in the order of their markers."""
        found: list[AbortedTransaction] = []
        first = max(bisect_right(self._bases, start) - 1, 0)
        for segment in self.segments[first:]:
            for entry in segment.transactions(self._files):
                if entry.last_offset >= start and entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    return tuple(found)
        return tuple(found)

    def offset_for_timestamp(self, timestamp: int) -> OffsetAt | None:
        """The first committed record that is not earlier. May wait for the disk."""
        return self._look_up(timestamp)

    def offset_of_max_timestamp(self) -> OffsetAt | None:
        """The first committed record with the largest timestamp. May wait for the disk."""
        return self._look_up(None)

    def _look_up(self, timestamp: int | None) -> OffsetAt | None:
        while True:
            self._check_online()
            layout = self._layout
            try:
                found = self._look_up_once(timestamp)
            except (KafkaError, IndexError):
                if layout == self._layout:
                    raise
            else:
                if layout == self._layout:
                    return found
            # Compaction or truncation moved batches while we looked.

    def _look_up_once(self, timestamp: int | None) -> OffsetAt | None:
        segments = [_timed(segment) for segment in list(self.segments)]
        start, end = self.start_offset, self.high_watermark
        try:
            if timestamp is None:
                return latest(self._files, segments, start=start, end=end)
            return first_at_or_after(self._files, segments, timestamp, start=start, end=end)
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None

    # Settings

    def _apply_settings(self) -> None:
        super()._apply_settings()
        self._has_log_append_time = self.settings.has_log_append_time
        self._limits = limits_of(self.settings)


def _timed(segment: Segment) -> TimedView:
    return TimedView(
        view=segment.view(), times_path=segment.path_of(TIME_INDEX_SUFFIX), times=segment.times,
        max_timestamp=segment.max_timestamp, max_timestamp_offset=segment.max_timestamp_offset,
    )  # fmt: skip


def limits_of(settings: LogSettings) -> Limits:
    """A topic's settings as far as they bear on what may be appended."""
    codec = settings.compression_type
    level = {
        "gzip": settings.compression_gzip_level,
        "lz4": settings.compression_lz4_level,
        "zstd": settings.compression_zstd_level,
    }.get(codec)
    by_name = {"uncompressed": Compression.NONE, "producer": None}
    return Limits(
        bytes_max=settings.max_message_bytes,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        is_compacted=settings.is_compacted,
        compression=by_name[codec] if codec in by_name else Compression[codec.upper()],
        level=level,
        log_append_time=settings.has_log_append_time,
    )
