"""An event loop whose time advances when no task is ready.

Threads are not simulated. Their work runs at once, or waits while ``is_holding``, so that tests can
act while a disk is busy.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .machines import FixedClock

Result = TypeVar("Result")


class _Selector(selectors.SelectSelector):
    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout:
            self._pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FixedClock) -> None:
        self._clock = clock
        self._seconds = 0.0
        super().__init__(_Selector(self._pass_time))
        self.is_holding = False
        self.held: list[Callable[[], None]] = []

    def _pass_time(self, seconds: float) -> None:
        self._seconds += seconds
        self._clock.ms += round(seconds * 1000)

    def time(self) -> float:
        return self._seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: object, work: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def run() -> None:
            try:
                result = work(*arguments)
            except BaseException as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
            else:
                future.set_result(result)

        if self.is_holding:
            self.held.append(run)
        else:
            self.call_soon(run)
        return future

    def release(self) -> None:
        """Run the held work in order."""
        held, self.held = self.held, []
        for run in held:
            run()


def run(clock: FixedClock, work: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    loop = VirtualLoop(clock)
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()
