"""Whether a disk that was full has room again, without saying so and taking it back every second.

A nearly full disk takes a small append and refuses the next. It counts as full until it has more
than a margin, or until appends went well for a while. Quotas refuse with much free space, so an
append that was refused a moment ago outweighs what the disk says.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.settings import SECOND_MS, MiB

MARGIN_BYTES_MAX = 64 * MiB
MARGIN_PARTS = 100
REFUSED_LATELY_MS = 2 * SECOND_MS
QUIET_MS = 10 * SECOND_MS


class Room(Struct):
    """``refused`` begins and prolongs being full, ``look`` may end it."""

    is_full: bool = False
    _refused_ms: float = 0.0
    _written: int | None = None

    def refused(self, now_ms: float) -> bool:
        """The disk took no more; whether that is new."""
        is_new = not self.is_full
        self.is_full, self._refused_ms, self._written = True, now_ms, None
        return is_new

    def look(self, now_ms: float, written: int, *, free_bytes: int, total_bytes: int) -> bool:
        """Whether there is room again, with so much written in all."""
        if self._written is None:
            self._written = written
        quiet_ms = now_ms - self._refused_ms
        has_margin = free_bytes > min(MARGIN_BYTES_MAX, total_bytes // MARGIN_PARTS)
        has_room = has_margin and quiet_ms >= REFUSED_LATELY_MS
        if has_room or (written > self._written and quiet_ms >= QUIET_MS):
            self.is_full = False
        return not self.is_full
