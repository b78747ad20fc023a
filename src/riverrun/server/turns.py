"""Lets others have the event loop while one request has much to do.

A handler that goes through what a client may have named a hundred thousand times over calls
``pause`` on the way; it costs a look at the clock, and a turn of the loop when it has gone on for
too long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from riverrun.ports.clock import Clock

TURN_SECONDS: Final = 0.005


class Turns:
    """The turns of the loop that one request takes."""

    __slots__ = ("_clock", "_ends")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends = clock.monotonic() + TURN_SECONDS

    async def pause(self) -> None:
        """Let everybody else run, if this turn was long."""
        if self._clock.monotonic() >= self._ends:
            await asyncio.sleep(0)
            self._ends = self._clock.monotonic() + TURN_SECONDS
