"""One line of progress on a terminal, rewritten in place, and how far a file has been read."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

EVERY_S = 0.5
CLEAR = "\r\033[K"


class ProgressLine:
    """A line on standard error. Prints nothing unless that is a terminal."""

    def __init__(self, now: float, *, is_wanted: bool) -> None:
        self.is_shown = is_wanted and sys.stderr.isatty()
        self._shown_at = now

    def update(self, now: float, text: Callable[[float], str]) -> None:
        """Show a text, unless the last one is very recent."""
        if self.is_shown and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            print(f"{CLEAR}{text(now)}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Before other output, and at the end."""
        if self.is_shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class InputFile:
    """The part of a regular file that is read from now on."""

    descriptor: int
    start: int
    end: int

    @classmethod
    def of(cls, descriptor: int) -> Self | None:
        """None for pipes and terminals, whose size is unknown, and for empty files."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        return cls(descriptor, start, status.st_size) if status.st_size > start else None

    def fraction(self) -> float:
        """How much has been read; at most 1, also while the file grows."""
        read = os.lseek(self.descriptor, 0, os.SEEK_CUR) - self.start
        return min(1.0, read / (self.end - self.start))


def share_in_words(fraction: float, seconds: float) -> str:
    """``43 %, about 16 s left``, assuming the rest takes as long as the part before."""
    if not 0 < fraction < 1:
        return f"{fraction:.0%}".replace("%", " %")
    left = seconds * (1 - fraction) / fraction
    return f"{int(fraction * 100)} %, about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
