"""Reports on a terminal what a command waits for when it takes long.

The client retries for up to half a minute. That is right for a program but looks like a hang to a
person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from riverrun.cli.support.session import in_words
from riverrun.model.errors import KafkaError

SAY_AFTER_S = 2.0

Failure = KafkaError | OSError
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""Like ``loop.call_later``."""


class Patience:
    """``wait_for`` starts a wait; ``moved`` and ``done`` end it. ``failed`` reports a failure
    that is retried. Each cause is printed once."""

    def __init__(self, say: Callable[[str], None], later: Later) -> None:
        self._say = say
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._what: str | None = None
        self._cause: Failure | None = None
        self._is_late = False
        self._said: dict[tuple[str, str], None] = {}

    def wait_for(self, what: str) -> None:
        self.done()
        self._what = what
        self._timer = self._later(SAY_AFTER_S, self._late)

    def moved(self) -> None:
        """Part of the work is done; the rest may take as long again."""
        if self._what is not None:
            self.wait_for(self._what)

    def done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._what = self._cause = None
        self._is_late = False

    def failed(self, failure: Failure) -> None:
        self._cause = failure
        if self._is_late:
            self._tell()

    def _late(self) -> None:
        self._is_late = True
        self._tell()

    def _tell(self) -> None:
        if self._what is None:
            return
        cause = (self._what, _kind_of(self._cause))
        if cause not in self._said:
            is_known = any(what == self._what for what, _ in self._said)
            self._said[cause] = None
            words = "still waiting" if is_known else f"waiting for {self._what}"
            self._say(words + _in_words(self._cause))


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
