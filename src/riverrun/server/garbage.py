"""Keeps the garbage collector away from the objects of logs, which live long.

A full collection visits all objects: with 30,000 replicas it would hold the event loop for half a
second. Frozen objects are not visited. Objects of deleted logs form cycles, so they are only freed
after they are unfrozen.

While a node loads its metadata and its logs, hardly any object becomes garbage. Collections then
visit a growing heap again and again and find nothing, for a third of the time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

CHECK_SECONDS: Final = 1.0
LOGS_MIN: Final = 1000
"""Logs created or deleted since the last change: a collection of these takes about 20 ms."""
PAUSE_SECONDS_MAX: Final = 30.0
"""Loading that takes longer reads large logs, and makes few objects for its time."""
THRESHOLDS: Final = (3000, 10, 10)
"""A new image of a large topic is thousands of objects that live on. With Python's default of 700,
the objects of a failover of 30,000 partitions are visited several times. Collections of the second
generation still take less than ten milliseconds."""

Loading = Callable[[], AbstractContextManager[None]]


def collect_less_often(set_threshold: Callable[[int, int, int], None] = gc.set_threshold) -> None:
    """To be called once in the process of a node."""
    set_threshold(*THRESHOLDS)


@contextmanager
def without_collections(
    *,
    freeze: Callable[[], None] = gc.freeze,
    disable: Callable[[], None] = gc.disable,
    enable: Callable[[], None] = gc.enable,
) -> Iterator[None]:
    """Collect no garbage while objects are made that live long, for at most ``PAUSE_SECONDS_MAX``.

    They are frozen at the end, or the next collection would visit all of them.
    """

    def end() -> None:
        freeze()
        enable()

    disable()
    limit = asyncio.get_running_loop().call_later(PAUSE_SECONDS_MAX, end)
    try:
        yield
    finally:
        limit.cancel()
        end()


class FrozenObjects:
    """Freezes all objects when many logs were opened or created, from ``start`` to ``stop``."""

    def __init__(
        self,
        count_logs: Callable[[], int],
        *,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        self._count_logs = count_logs
        self._freeze = freeze
        self._unfreeze = unfreeze
        self._logs = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def freeze(self) -> None:
        """Freeze all objects now. Those made during the start of a node live as long as it."""
        self._logs = self._count_logs()
        self._freeze()

    def check(self) -> None:
        """Called every second."""
        logs = self._count_logs()
        if logs >= self._logs + LOGS_MIN:
            self.freeze()
        elif logs <= self._logs - LOGS_MIN:
            self._logs = logs
            self._unfreeze()

    def _tick(self) -> None:
        self.check()
        self.start()
