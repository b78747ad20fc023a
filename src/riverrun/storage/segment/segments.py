"""The ordered list of a log's segments: find, roll, replace, discard and truncate.

This module manages files and positions. The offsets that clients see, producers and leader epochs
belong to ``log``.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from riverrun.ports.files import File, Files
from riverrun.storage.segment.index_files import load_indexed_part
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.scan import OffsetRules, ReplayedState, scan
from riverrun.storage.segment.segment import DELETED_SUFFIX, Segment
from riverrun.storage.settings import LogSettings


class Segments(Sequence[Segment]):
    """All segments of one log, the oldest first. There is always at least one."""

    def __init__(
        self, files: Files, open_files: OpenFiles, directory: str, segments: list[Segment]
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._directory = directory
        self._segments = segments
        self.layout = 0
        """Changes when positions in the files no longer belong to the same batches."""
        self.compacting_to: int | None = None
        """The end of the closed segments that are being compacted. A truncation that reaches them
        sets it to None, which ends the compaction."""
        self._derive()

    def _derive(self) -> None:
        self.active = self._segments[-1]
        """The newest segment, the only one that is appended to."""
        self._bases = [segment.base_offset for segment in self._segments]
        self._closed_bytes = sum(segment.size for segment in self._segments[:-1])

    @overload
    def __getitem__(self, place: int) -> Segment: ...
    @overload
    def __getitem__(self, place: slice) -> list[Segment]: ...
    def __getitem__(self, place: int | slice) -> Segment | list[Segment]:
        return self._segments[place]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def base_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + self.active.size

    # Finding

    def place_of(self, offset: int) -> int:
        """The place of the segment that holds an offset, or of the first if all start above it."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def find(self, offset: int) -> Segment:
        return self._segments[self.place_of(offset)]

    def after(self, segment: Segment) -> Segment:
        return self._segments[self._segments.index(segment) + 1]

    def starts_at(self, offset: int) -> bool:
        """Whether a segment has this base offset."""
        place = bisect_left(self._bases, offset)
        return place < len(self._bases) and self._bases[place] == offset

    def find_run(self, bases: Sequence[int]) -> int | None:
        """The place of the first of these neighbouring, closed segments; None if they changed."""
        first = bisect_left(self._bases, bases[0])
        stop = first + len(bases)
        is_run = self._bases[first:stop] == list(bases) and stop < len(self._bases)
        return first if is_run else None

    def end_below(self, offset: int, settings: LogSettings) -> int:
        """Where the log would end if it was truncated to an offset: that offset, or less if it is
        within a batch, or in a gap that compaction left."""
        if not self._bases[0] < offset < self.active.next_offset:
            return offset
        segment = self._segments[bisect_left(self._bases, offset) - 1]
        copy = self.new(segment.base_offset)
        copy.alias, copy.size = segment.alias, segment.size
        self._scan_below(offset, segment.open().file, copy, settings)
        return copy.next_offset

    def _scan_below(self, offset: int, file: File, segment: Segment, settings: LogSettings) -> None:
        """Restore the state of a segment for the batches below an offset."""
        size = segment.size
        load_indexed_part(self._files, file, segment, settings, trusted_offset=offset)
        rules = OffsetRules(below=offset)
        scan(file, segment, ReplayedState.ignored(), start=segment.size, size=size, rules=rules)

    # Changing

    def new(self, base_offset: int) -> Segment:
        """A segment that is not in the list yet."""
        return Segment(self._open_files, self._directory, base_offset)

    def roll(self, base_offset: int, now_ms: int, settings: LogSettings) -> Segment:
        """Create a segment, complete the indexes of the active one, and make the new one active."""
        segment = self.new(base_offset)
        segment.created_ms = now_ms
        segment.open(create=True)
        segment.activate(settings)
        closed = self.active
        with contextlib.suppress(OSError):  # the disk is full: the next flush tries again
            closed.close_indexes(self._files)
            self._open_files.note_index(closed)
        self._segments.append(segment)
        self._derive()
        return segment

    def discard(self, count: int) -> list[Segment]:
        """Remove the oldest segments. Their files get the suffix ``.deleted``."""
        assert count < len(self._segments), "a log keeps its active segment"
        discarded = self._segments[:count]
        self._retire(discarded)
        self._put(0, count)
        return discarded

    def replace(self, first: int, count: int, segment: Segment) -> list[Segment]:
        """Replace some segments by one. The old files get the suffix ``.deleted``."""
        replaced = self._segments[first : first + count]
        segment.next_offset = replaced[-1].next_offset
        segment.created_ms = replaced[-1].created_ms
        self._retire(replaced)
        self._put(first, first + count, segment)
        return replaced

    def truncate(self, offset: int, settings: LogSettings) -> None:
        """Remove batches from the one with this offset on."""
        assert offset >= self._bases[0], f"{offset} is below {self._bases[0]}"
        if offset == self._bases[0]:
            self.restart(offset, settings)
            return
        self.active.write_indexes(self._files, exactly=True)
        stop = bisect_left(self._bases, offset)
        if self.compacting_to is not None and self._bases[stop - 1] < self.compacting_to:
            self.compacting_to = None
        self._retire(self._segments[stop:])
        self._put(stop, len(self._segments))
        segment = self.active
        file = segment.open().file
        self._scan_below(offset, file, segment, settings)
        file.truncate(segment.size)
        segment.truncate_transactions(self._files, segment.next_offset)
        segment.synced_size = min(segment.synced_size, segment.size)
        segment.checked_from = min(segment.checked_from, segment.size)
        segment.write_indexes(self._files, exactly=True)

    def restart(self, base_offset: int, settings: LogSettings) -> None:
        """Remove all segments and start with an empty one."""
        self.compacting_to = None
        self._retire(self._segments)
        segment = self.new(base_offset)
        segment.created_ms = self.active.created_ms
        segment.open(create=True)
        segment.activate(settings)
        self._put(0, len(self._segments), segment)

    def invalidate(self) -> None:
        """Files were renamed or are about to be removed: running reads must start again."""
        self.layout += 1

    def _retire(self, segments: Sequence[Segment]) -> None:
        """Close segments and rename their files, so that a restart does not load them."""
        self.layout += 1
        for segment in segments:
            segment.close()
            for path in segment.paths():
                if self._files.exists(path):
                    self._files.rename(path, path + DELETED_SUFFIX)

    def _put(self, first: int, stop: int, *segments: Segment) -> None:
        self._segments[first:stop] = segments
        self._derive()

    def close(self) -> None:
        """Close the files. Data that was not flushed may be lost in a power failure."""
        for segment in self._segments:
            segment.close()
