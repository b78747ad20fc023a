"""Decides when a disk that was full has space again.

A nearly full disk takes a small append and refuses the next one. So the disk counts as full until
it has more than a margin of free space, or until appends succeed for some time. Quotas refuse
writes while the disk reports free space, so a recent refusal outweighs that report.
"""

from __future__ import annotations

import errno

from msgspec import Struct

from riverrun.model.settings import SECOND_MS, MiB

MARGIN_BYTES_MAX = 64 * MiB
MARGIN_DIVISOR = 100
RECENT_FAILURE_MS = 2 * SECOND_MS
QUIET_MS = 10 * SECOND_MS
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: OSError) -> bool:
    return error.errno in _FULL


class DiskSpace(Struct, frozen=True):
    """The space on the disk of a data directory."""

    total_bytes: int
    usable_bytes: int


class SpaceMonitor:
    """``write_failed`` starts and prolongs the full state, ``update`` may end it."""

    __slots__ = ("_end_offsets", "_failed_ms", "is_full")

    def __init__(self) -> None:
        self.is_full = False
        self._failed_ms = 0.0
        self._end_offsets: int | None = None

    def write_failed(self, now_ms: float) -> bool:
        """A write found no space. Returns whether the disk was not full before."""
        is_new = not self.is_full
        self.is_full, self._failed_ms, self._end_offsets = True, now_ms, None
        return is_new

    def update(self, now_ms: float, end_offsets: int, *, free_bytes: int, total_bytes: int) -> bool:
        """Whether there is space again. The sum of end offsets shows whether appends succeed."""
        if self._end_offsets is None:
            self._end_offsets = end_offsets
        quiet_ms = now_ms - self._failed_ms
        has_margin = free_bytes > min(MARGIN_BYTES_MAX, total_bytes // MARGIN_DIVISOR)
        has_space = has_margin and quiet_ms >= RECENT_FAILURE_MS
        if has_space or (end_offsets > self._end_offsets and quiet_ms >= QUIET_MS):
            self.is_full = False
        return not self.is_full
