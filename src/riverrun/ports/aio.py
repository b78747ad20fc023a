"""Small mechanisms that every asynchronous part of a node needs, each once.

- ``Backoff``: how long to wait after failures in a row.
- ``Yielder``: yield to the event loop during long work.
- ``StallCredit``: measure our own delay, so that peers' deadlines can be extended by it.
- ``LogLimiter``: log repeated events at a limited rate.
- ``OwnedTasks``: tasks that end with their owner and report failures to it.
- ``run_together``: run coroutines concurrently and raise the first failure.
- ``discard_result``: a callback for futures whose waiter may be gone.

Time and randomness are arguments. ``Backoff`` and ``StallCredit`` are pure, so pure packages may
use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from msgspec import Struct

from riverrun.ports.clock import Clock
from riverrun.ports.randomness import Randomness

Result = TypeVar("Result")

DOUBLINGS_MAX: Final = 16
YIELD_SECONDS: Final = 0.005
YIELD_STEPS_MAX: Final = 1000
LOG_SUBJECTS_MAX: Final = 1000


class Backoff(Struct, frozen=True, kw_only=True):
    """Delays that double with each failure, up to a limit.

    Jitter multiplies a delay by a random factor in [``jitter_min``, ``jitter_max``]. It keeps
    callers that failed together from retrying together.
    """

    first_seconds: float
    max_seconds: float
    jitter_min: float = 0.8
    jitter_max: float = 1.2

    def exact(self, failures: int) -> float:
        """The delay in seconds after this many failures in a row, without jitter."""
        assert failures >= 1, f"{failures} failures"
        doubled: float = self.first_seconds * 2.0 ** min(failures - 1, DOUBLINGS_MAX)
        return min(doubled, self.max_seconds)

    def jittered(self, failures: int, randomness: Randomness) -> float:
        """The delay in seconds after this many failures in a row."""
        return self.exact(failures) * randomness.between(self.jitter_min, self.jitter_max)


class Yielder:
    """Yields to the event loop when the work since the last yield took 5 ms.

    It also yields after ``steps_max`` steps. Time stands still within an iteration of the
    simulation's event loop, so there the steps alone let other tasks run in between.
    """

    __slots__ = ("_clock", "_due", "_steps", "_steps_max")

    def __init__(self, clock: Clock, *, steps_max: int = YIELD_STEPS_MAX) -> None:
        assert steps_max >= 1, f"{steps_max} steps"
        self._clock = clock
        self._steps_max = steps_max
        self._steps = 0
        self._due = clock.monotonic() + YIELD_SECONDS

    async def step(self) -> None:
        """Call after each small piece of work."""
        self._steps += 1
        if self._steps >= self._steps_max or self._clock.monotonic() >= self._due:
            await asyncio.sleep(0)
            self._steps = 0
            self._due = self._clock.monotonic() + YIELD_SECONDS

    async def run(self, steps: Iterator[None]) -> None:
        """Run a generator that yields after each small piece of work."""
        for _ in steps:
            await self.step()


class StallCredit:
    """Measures how late this process looks at its deadlines.

    A process that was stopped, or whose event loop was busy, finds its peers' deadlines expired
    while their messages are still unread in its own sockets. A late timer is our own delay, so the
    caller extends the deadlines of its peers by it.
    """

    __slots__ = ("_grace_seconds", "_tolerance_seconds", "due")

    def __init__(self, *, tolerance_seconds: float, grace_seconds: float = 0.0) -> None:
        """A stall is longer than the tolerance. The grace is added to it: time to read messages."""
        self._tolerance_seconds = tolerance_seconds
        self._grace_seconds = grace_seconds
        self.due: float | None = None

    def expect(self, due: float | None) -> None:
        """Set the time at which ``take`` should be called next."""
        self.due = due

    def take(self, now: float) -> float:
        """The seconds to credit to peers: 0 unless ``now`` is too late."""
        if self.due is None:
            return 0.0
        late = now - self.due
        return late + self._grace_seconds if late > self._tolerance_seconds else 0.0


class LogLimiter:
    """Admits one log event for each subject and interval, and counts the others."""

    __slots__ = ("_admitted", "_clock", "_interval_seconds")

    def __init__(self, clock: Clock, *, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._admitted: dict[str, _Admitted] = {}

    def admit(self, subject: str) -> int | None:
        """The number of events left out since the last one; None if this one must be left out."""
        now = self._clock.monotonic()
        known = self._admitted.get(subject)
        if known is None:
            if not self._has_room(now):
                return None
            self._admitted[subject] = _Admitted(now)
            return 0
        if now - known.at < self._interval_seconds:
            known.left_out += 1
            return None
        left_out = known.left_out
        known.at, known.left_out = now, 0
        return left_out

    def reset(self, subject: str) -> None:
        """Admit the next event of a subject at once: its condition has ended."""
        self._admitted.pop(subject, None)

    def _has_room(self, now: float) -> bool:
        """Whether another subject fits. Clients choose subjects, so their number is bounded."""
        if len(self._admitted) >= LOG_SUBJECTS_MAX:
            interval = self._interval_seconds
            self._admitted = {s: a for s, a in self._admitted.items() if now - a.at < interval}
        return len(self._admitted) < LOG_SUBJECTS_MAX


class _Admitted(Struct):
    at: float
    left_out: int = 0


class OwnedTasks:
    """Tasks of one owner. They are cancelled when the owner closes.

    A task that fails reports its error to ``on_failure`` with the task's name.
    """

    __slots__ = ("_is_closed", "_on_failure", "_running")

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self, work: Coroutine[Any, Any, None], *, name: str | None = None
    ) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the owner closes."""
        assert not self._is_closed, "the owner is closed"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all tasks without waiting for them."""
        for task in list(self._running):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended. No task may be started afterwards."""
        self._is_closed = True
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)


async def run_together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines concurrently and return their results in order.

    The first failure cancels the others. It is raised alone and not in an exception group, because
    callers that retry expect a ``KafkaError`` or an ``OSError``.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def discard_result(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future as seen, because its waiter may be gone when it fails.

    Used as a done callback. Without it asyncio logs that the error was never retrieved.
    """
    if not future.cancelled():
        future.exception()
