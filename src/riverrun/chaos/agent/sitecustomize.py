"""Makes syncs of a node slow or failing, and its wall clock wrong.

The node's interpreter loads this module, because its folder is on PYTHONPATH. The product does not
depend on it. A file named by the environment holds the faults and may change while the node runs.
Only the wall clock is shifted, because real systems do not shift monotonic time either.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from typing import Any

VARIABLE = "CHAOS_AGENT_FILE"

_stat = os.stat
_sleep = time.sleep


class _Faults:
    """The values of the file, read again when it has changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = -1
        self._values: dict[str, float] = {}

    def value(self, name: str) -> float:
        try:
            stamp = _stat(self._path).st_mtime_ns
            if stamp != self._stamp:
                with open(self._path) as file:
                    self._values = json.load(file)
                self._stamp = stamp
        except (OSError, ValueError):
            return self._values.get(name, 0.0)
        return self._values.get(name, 0.0)


def _install(faults: _Faults) -> None:
    def slow(sync: Callable[[Any], None]) -> Callable[[Any], None]:
        def synced(descriptor: Any) -> None:
            seconds = faults.value("fsync_seconds")
            if seconds > 0:
                _sleep(seconds)
            if faults.value("fsync_fails"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(descriptor)

        return synced

    os.fsync = slow(os.fsync)  # type: ignore[assignment]
    os.fdatasync = slow(os.fdatasync)  # type: ignore[assignment]
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + faults.value("clock_seconds")
    time.time_ns = lambda: right_ns() + int(faults.value("clock_seconds") * 1e9)


if VARIABLE in os.environ:
    _install(_Faults(os.environ[VARIABLE]))
