"""When to look at the deadlines again, and who is to blame when that is late.

A process that was stopped, or a loop that was busy, wakes up to find everybody's time run out while
their heartbeats lie unread in its own sockets. So a late wake-up credits its delay to all deadlines
and lets one round of input pass before anybody is judged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from riverrun.ports.clock import Clock

TICK_SECONDS: Final = 1.0
"""Longest sleep while anybody's time runs, so that a stall of our own is noticed as one."""
LATE_SECONDS: Final = 0.5
"""A wake-up this late is our own fault."""
GRACE_SECONDS: Final = 0.1
"""After a late wake-up, time for what lies in the sockets to be read."""


class Alarm:
    """Calls ``expire`` at deadlines and ``credit`` with the seconds of a delay of our own."""

    def __init__(
        self, clock: Clock, *, expire: Callable[[], None], credit: Callable[[float], None]
    ) -> None:
        self._clock = clock
        self._expire = expire
        self._credit = credit
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, deadline: float | None) -> None:
        """Wake up for a deadline, unless that happens earlier anyway."""
        if deadline is None or (self._handle is not None and deadline >= self._at):
            return
        now = self._clock.monotonic()
        at = min(max(deadline, now), now + TICK_SECONDS)
        if self._handle is None or at < self._at:
            self._arm(at, now)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, at: float, now: float) -> None:
        self.stop()
        self._at = at
        self._handle = asyncio.get_running_loop().call_later(at - now, self._wake)

    def _wake(self) -> None:
        now = self._clock.monotonic()
        late = now - self._at
        self._handle = None
        if late > LATE_SECONDS:
            self._credit(late)
            self._arm(now + GRACE_SECONDS, now)
        else:
            self._expire()
