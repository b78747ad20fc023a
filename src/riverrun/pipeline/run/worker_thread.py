"""A thread for calls into Java.

Such a call may block for minutes, and an exception that a signal raises inside it breaks the
connection to Java. So the main thread never makes one. The thread is a daemon: it must not keep a
process alive that ends at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

Result = TypeVar("Result")


class WorkerThread(Generic[Result]):
    """Runs a function once. Its result or error is that of ``result``."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work = work
        self._results: list[Result] = []
        self._error = _RaisedError()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    def result(self) -> Result:
        """Wait for the end, and return the result or raise the error."""
        self._is_over.wait()
        if self._error.error is not None:
            raise self._error.error
        return self._results[0]

    def _run(self) -> None:
        with self._error:
            self._results.append(self._work())
        self._is_over.set()


class _RaisedError:
    """Keeps the error of its block, which the waiting thread raises. A thread would print it."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> bool:
        self.error = error
        return True
