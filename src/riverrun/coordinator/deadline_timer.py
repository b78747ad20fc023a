"""Wakes up for the earliest deadline, and reports wake-ups that were late by our own fault.

A late wake-up means that this process was stopped or its event loop was busy. Members' deadlines
then seem expired while their heartbeats are unread in our own sockets. So a late wake-up expires
nothing: it reports the stall, and the caller postpones all deadlines by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from riverrun.ports.aio import StallCredit
from riverrun.ports.clock import Clock

TICK_SECONDS: Final = 1.0
"""Longest sleep while there is a deadline, so that a stall is measured soon after it."""
LATE_SECONDS: Final = 0.5
"""A wake-up this late counts as a stall."""
GRACE_SECONDS: Final = 0.1
"""Added to the credit of a stall: time to read the requests in our sockets."""


class DeadlineTimer:
    """Calls ``on_due`` at deadlines, or ``on_stall`` with the seconds to credit to members."""

    def __init__(
        self, clock: Clock, *, on_due: Callable[[], None], on_stall: Callable[[float], None]
    ) -> None:
        self._clock = clock
        self._on_due = on_due
        self._on_stall = on_stall
        self._stall = StallCredit(tolerance_seconds=LATE_SECONDS, grace_seconds=GRACE_SECONDS)
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def set(self, deadline: float | None) -> None:
        """Wake up for a deadline, unless an earlier wake-up is set."""
        if deadline is None or (self._handle is not None and deadline >= self._at):
            return
        now = self._clock.monotonic()
        at = min(max(deadline, now), now + TICK_SECONDS)
        if self._handle is None or at < self._at:
            self.stop()
            self._at = at
            self._stall.expect(at)
            self._handle = asyncio.get_running_loop().call_later(at - now, self._wake)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wake(self) -> None:
        self._handle = None
        credit = self._stall.take(self._clock.monotonic())
        if credit:
            self._on_stall(credit)
        else:
            self._on_due()
