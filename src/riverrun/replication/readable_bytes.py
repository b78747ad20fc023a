"""Sizes of appends that readers cannot see yet.

A waiting fetch counts bytes as they become readable, without reading the log: up to the high
watermark, or up to the last stable offset with read_committed.

    append ──> uncommitted ──high watermark──> unstable ──last stable offset──> readable by all

Without open transactions both offsets move together, and nothing is kept in between.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

UNKNOWN_BYTES: Final = 2**63 - 1
"""The size of records that are older than our role. It wakes every fetch, which reads the log."""
UNSTABLE_MAX: Final = 1000
"""Appends kept apart behind an open transaction. Further ones are added to the last of them."""


class NewlyReadable(NamedTuple):
    """Bytes that became readable."""

    visible: int
    """Below the high watermark."""
    stable: int
    """Below the last stable offset; 0 if it did not move."""


class ReadableBytes:
    __slots__ = ("_stable_offset", "_uncommitted", "_unstable", "newly_stable", "newly_visible")

    def __init__(self) -> None:
        self._uncommitted: deque[tuple[int, int]] | None = None
        """End offset and size in bytes of each append above the high watermark. None until the
        first one: an empty deque takes 600 bytes, in each partition."""
        self._unstable: deque[tuple[int, int]] | None = None
        """The same for appends between last stable offset and high watermark."""
        self._stable_offset = -1
        self.newly_visible = 0
        """The results of the last ``advance``. No tuple, because most appends wake no fetch."""
        self.newly_stable = 0

    @property
    def news(self) -> NewlyReadable:
        return NewlyReadable(self.newly_visible, self.newly_stable)

    def add(self, end: int, size_bytes: int) -> None:
        """Records were appended up to an offset."""
        if self._uncommitted is None:
            self._uncommitted = deque()
        self._uncommitted.append((end, size_bytes))

    def clear(self) -> None:
        self._uncommitted = self._unstable = None
        self._stable_offset = -1

    def truncate(self, end: int) -> None:
        """Drop appends that end above an offset."""
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[-1][0] > end:
            uncommitted.pop()

    def advance(self, high_watermark: int, stable_offset: int) -> None:
        """The high watermark has moved, and the last stable offset may have."""
        uncommitted, visible = self._uncommitted, 0
        if stable_offset >= high_watermark and not self._unstable:
            while uncommitted and uncommitted[0][0] <= high_watermark:
                visible += uncommitted.popleft()[1]
            self._stable_offset = stable_offset
            self.newly_visible = self.newly_stable = visible or UNKNOWN_BYTES
            return
        if self._unstable is None:
            self._unstable = deque()
        unstable = self._unstable
        while uncommitted and uncommitted[0][0] <= high_watermark:
            end, size = uncommitted.popleft()
            visible += size
            if len(unstable) >= UNSTABLE_MAX:
                size += unstable.pop()[1]
            unstable.append((end, size))
        stable = 0
        while unstable and unstable[0][0] <= stable_offset:
            stable += unstable.popleft()[1]
        if stable_offset > self._stable_offset:
            self._stable_offset = stable_offset
            stable = stable or UNKNOWN_BYTES
        self.newly_visible, self.newly_stable = visible or UNKNOWN_BYTES, stable
