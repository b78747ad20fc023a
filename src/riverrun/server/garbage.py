"""Keeps the garbage collector away from the objects of logs, which live long.

A full collection visits all objects: with 30,000 replicas it would hold the event loop for half a
second. Frozen objects are not visited. Objects of deleted logs form cycles, so they are only freed
after they are unfrozen.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

CHECK_SECONDS: Final = 1.0
LOGS_MIN: Final = 1000
"""Logs created or deleted since the last change: a collection of these takes about 20 ms."""


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
