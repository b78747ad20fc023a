"""Clocks: wall-clock time for users, monotonic time for deadlines."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment. Never goes back."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
