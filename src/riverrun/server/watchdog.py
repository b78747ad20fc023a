"""Detects event-loop iterations that take too long and delay every client.

A timer measures how late it fires. All stalls are counted. Long stalls are logged, at most once a
second: a machine with too few cores has short stalls all the time. A stall shorter than the limit
plus one interval may be missed.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from riverrun.ports.aio import LogLimiter, StallCredit
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics

STALL_SECONDS: Final = 0.05
LOGGED_STALL_SECONDS: Final = 0.25
INTERVAL_SECONDS: Final = 0.025
LOG_SECONDS: Final = 1.0

log = structlog.get_logger("riverrun")


class Watchdog:
    """Checks the clock in short intervals, from ``start`` to ``stop``."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._stalls = metrics.counter(
            "riverrun_loop_stalls_total", "Event-loop iterations that took more than 50 ms."
        )
        self._timer: asyncio.TimerHandle | None = None
        self._lateness = StallCredit(tolerance_seconds=STALL_SECONDS)
        self._log_limiter = LogLimiter(clock, interval_seconds=LOG_SECONDS)

    def start(self) -> None:
        self._lateness.expect(self._clock.monotonic() + INTERVAL_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        late = self._lateness.take(self._clock.monotonic())
        if late:
            self._stalls.value += 1
        if late >= LOGGED_STALL_SECONDS and self._log_limiter.admit("stall") is not None:
            stalls = int(self._stalls.value)
            log.warning("event loop stalled", seconds=round(late, 3), stalls=stalls)
        self.start()
