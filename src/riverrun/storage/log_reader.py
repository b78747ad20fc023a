"""Reads batches of one log from the page cache, or hands out a ``ColdRead`` for a thread.

The reader remembers where recent reads ended, so that sequential readers need no index search. It
checks the CRC of a batch that comes from the disk before it returns it for the first time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Protocol

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.ports.files import Files
from riverrun.records.batch import CorruptBatch
from riverrun.storage.segment.index import AbortedTransaction
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.reader import ColdRead, SegmentView, Slice, read_batches, sound_prefix
from riverrun.storage.segment.segment import TIME_INDEX_SUFFIX, Segment
from riverrun.storage.segment.segments import Segments
from riverrun.storage.segment.time_search import OffsetAt, TimedView, first_at_or_after, latest

_HINTS_MAX = 32


class ReadableLog(Protocol):
    """``Log.read``."""

    def __call__(
        self, offset: int, *, max_bytes: int, end: int, at_least_one: bool
    ) -> Slice | ColdRead: ...


class LogReader:
    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        segments: Segments,
        read_again: ReadableLog,
        report_damage: Callable[[str, int], None],
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._segments = segments
        self._read_again = read_again
        self._report_damage = report_damage
        self._hints: dict[int, tuple[Segment, int]] = {}
        """Where the batch with an offset starts, for offsets that readers are expected to ask."""
        self._hints_layout = segments.layout

    def read(self, offset: int, max_bytes: int, end: int, at_least_one: bool) -> Slice | ColdRead:
        """Whole batches from the one with an offset on, and below ``end``.

        Raises ``CorruptBatch`` and ``OSError``.
        """
        segments = self._segments
        if self._hints_layout != segments.layout:
            self._hints = {}
            self._hints_layout = segments.layout
        hint = self._hints.get(offset)
        position: int | None
        if hint is not None and (hint[1] < hint[0].size or hint[0] is segments.active):
            segment, position = hint
        else:
            segment = segments.find(offset)
            position = 0 if offset == segment.base_offset else None
        while True:
            handle = segment.handle
            if handle is None and segment.is_warm:
                handle = segment.open()
            found = None
            if handle is not None and (position is not None or segment.index is not None):
                segment.is_recent = True
                found = read_batches(
                    handle.file.read_cached_at,
                    segment,
                    offset,
                    position,
                    max_bytes=max_bytes,
                    end=end,
                    at_least_one=at_least_one,
                )
            if found is None:
                return self._cold(segment, offset, position, max_bytes, end, at_least_one)
            at, result = found
            if result.data:
                return self._checked(segment, at, result, offset)
            if at < segment.size or segment is segments.active:
                return Slice(b"", offset)
            # A compacted segment may end before its successor begins.
            segment = segments.after(segment)
            position = 0

    def _checked(self, segment: Segment, at: int, result: Slice, offset: int) -> Slice:
        """The batches up to the first whose CRC is wrong."""
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
        hints = self._hints
        if offset not in hints:
            if len(hints) >= _HINTS_MAX:
                del hints[next(iter(hints))]
            hints[offset] = (segment, position)

    # Cold reads

    def _cold(
        self,
        segment: Segment,
        offset: int,
        position: int | None,
        max_bytes: int,
        end: int,
        at_least_one: bool,
    ) -> ColdRead:
        views: list[SegmentView] = []
        for candidate in self._segments[self._segments.index(segment) :]:
            views.append(candidate.view())
            if len(views) > 1 and candidate.size:
                break
        handle = segment.handle
        segment.is_warm = True
        return ColdRead(
            self._files,
            views,
            handle.acquire() if handle is not None else None,
            offset=offset,
            position=position,
            max_bytes=max_bytes,
            end=end,
            at_least_one=at_least_one,
            interval_bytes=self._segments.active.interval_bytes,
            adopt=self._adopt,
            layout=self._segments.layout,
            is_current=self._is_current,
            again=partial(
                self._read_again, offset, max_bytes=max_bytes, end=end, at_least_one=at_least_one
            ),
        )

    def _is_current(self, layout: int) -> bool:
        return layout == self._segments.layout

    def _adopt(self, cold: ColdRead) -> None:
        if not cold.is_current:
            return  # truncated or compacted meanwhile: the positions belong to other batches
        if cold.damage is not None:
            self._report_damage(cold.damage, cold.offset)
        for segment in self._segments:
            index = cold.indexes.get(segment.base_offset)
            if index is not None and segment.index is None:
                segment.index = index
                self._open_files.note_index(segment)
                segment.try_write_indexes(self._files)
            if cold.checked is not None and cold.checked[0] == segment.base_offset:
                segment.mark_checked(cold.checked[1], cold.checked[2])
                self._remember(cold.next_offset, segment, cold.checked[2])

    # Searching

    def aborted_transactions(self, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Aborted transactions with records in [start, end), in the order of their starts.

        Consumers read them in this order beside the records, though the index has them in the order
        of their markers. Each entry tells up to where all transactions had ended at its time, so
        the search stops at the first one that covers the range.
        """
        found: list[AbortedTransaction] = []
        for segment in self._segments[self._segments.place_of(start) :]:
            entries = segment.transactions(self._files)
            first = bisect_left(entries, start, key=attrgetter("last_offset"))
            for entry in islice(entries, first, None):
                if entry.first_offset < end:
                    found.append(entry)
                if entry.last_stable_offset >= end:
                    found.sort(key=attrgetter("first_offset"))
                    return tuple(found)
        found.sort(key=attrgetter("first_offset"))
        return tuple(found)

    def search(
        self, timestamp: int | None, readable_range: Callable[[], tuple[Offset, Offset]]
    ) -> OffsetAt | None:
        """The first readable record that is not earlier; with None, the one with the largest time.

        Waits for the disk. Raises KafkaError CORRUPT_MESSAGE, or what ``readable_range`` raises.
        """
        while True:
            start, end = readable_range()
            layout = self._segments.layout
            try:
                found = self._search_once(timestamp, start, end)
            except (KafkaError, IndexError):
                if layout == self._segments.layout:
                    raise
            else:
                if layout == self._segments.layout:
                    return found
            # Compaction or truncation moved batches during the search.

    def _search_once(self, timestamp: int | None, start: int, end: int) -> OffsetAt | None:
        try:
            if timestamp is None:
                return latest(self._files, self._timed(), start=start, end=end)
            return first_at_or_after(self._files, self._timed(), timestamp, start=start, end=end)
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None

    def _timed(self) -> list[TimedView]:
        return [
            TimedView(
                view=segment.view(),
                times_path=segment.path_of(TIME_INDEX_SUFFIX),
                times=segment.times,
                max_timestamp=segment.max_timestamp,
                max_timestamp_offset=segment.max_timestamp_offset,
            )
            for segment in list(self._segments)
        ]
