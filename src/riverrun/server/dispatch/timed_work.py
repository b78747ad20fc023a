"""A coroutine that measures how long it uses the event loop. Time in which it waits is free."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from riverrun.ports.clock import Clock


class TimedWork(Coroutine[Any, Any, Any]):
    """Runs another coroutine step by step. A task can run it like any coroutine."""

    __slots__ = ("_clock", "_work", "seconds")

    def __init__(self, work: Coroutine[Any, Any, Any], clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self.seconds = 0.0

    def send(self, value: Any) -> Any:
        began = self._clock.monotonic()
        try:
            return self._work.send(value)
        finally:
            self.seconds += self._clock.monotonic() - began

    def throw(self, *error: Any) -> Any:
        began = self._clock.monotonic()
        try:
            return self._work.throw(*error)
        finally:
            self.seconds += self._clock.monotonic() - began

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("timed work is run by a task")
