"""Prints the reason for a wait when a command takes long.

The client retries for up to half a minute. That is right for a program but looks like a hang to a
person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from riverrun.admin.requests import in_words
from riverrun.model.errors import KafkaError

REPORT_AFTER_SECONDS = 2.0

Failure = KafkaError | OSError
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""Like ``loop.call_later``."""


class WaitReporter:
    """``wait_for`` starts a wait; ``progressed`` and ``done`` end it. ``failed`` reports a failure
    that is retried. Each cause is printed once."""

    def __init__(self, print_line: Callable[[str], None], later: Later) -> None:
        self._print = print_line
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: str | None = None
        self._cause: Failure | None = None
        self._is_late = False
        self._reported: dict[tuple[str, str], None] = {}

    def wait_for(self, awaited: str) -> None:
        self.done()
        self._awaited = awaited
        self._timer = self._later(REPORT_AFTER_SECONDS, self._late)

    def progressed(self) -> None:
        """Part of the work is done; the rest may take as long again."""
        if self._awaited is not None:
            self.wait_for(self._awaited)

    def done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._awaited = self._cause = None
        self._is_late = False

    def failed(self, failure: Failure) -> None:
        self._cause = failure
        if self._is_late:
            self._report()

    def _late(self) -> None:
        self._is_late = True
        self._report()

    def _report(self) -> None:
        if self._awaited is None:
            return
        cause = (self._awaited, _kind_of(self._cause))
        if cause not in self._reported:
            is_known = any(awaited == self._awaited for awaited, _ in self._reported)
            self._reported[cause] = None
            words = "still waiting" if is_known else f"waiting for {self._awaited}"
            self._print(words + _in_words(self._cause))


def _kind_of(cause: Failure | None) -> str:
    """Error texts differ between attempts, because nodes are asked in any order."""
    if isinstance(cause, KafkaError):
        return cause.code.name
    return "" if cause is None else type(cause).__name__


def _in_words(cause: Failure | None) -> str:
    if cause is None:
        return ""
    text = in_words(cause).splitlines()[0] if isinstance(cause, KafkaError) else str(cause)
    return f": {text}"
