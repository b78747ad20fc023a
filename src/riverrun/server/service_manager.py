"""Tells a service manager such as systemd when the node is ready, alive and stopping.

The manager passes the address of a socket in ``NOTIFY_SOCKET`` (``sd_notify(3)``, ``Type=notify``).
Without it nothing is sent. A start may take long, because a node recovers its logs or waits for its
seeds; meanwhile the manager's timeout is extended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import Final

EXTENSION_SECONDS: Final = 60.0
EXTEND_TIMEOUT: Final = f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * 1_000_000)}"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
WATCHDOG_FRACTION: Final = 0.5
"""``sd_watchdog_enabled(3)`` recommends to report every half of the limit."""


class NotifySocket:
    """The socket of the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # the abstract namespace of Linux

    @property
    def is_present(self) -> bool:
        return bool(self._address)

    def send(self, message: str) -> None:
        if not self._address:
            return
        # A manager that does not listen must not stop the node.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto(message.encode(), self._address)


class ServiceManager:
    """``starting``, ``ready`` and ``stopping`` are called once each, in this order."""

    def __init__(self, environment: Mapping[str, str], process_id: int) -> None:
        self._socket = NotifySocket(environment)
        self._watchdog_seconds = watchdog_seconds(environment, process_id)
        self._timer: asyncio.TimerHandle | None = None

    def starting(self) -> None:
        if self._socket.is_present:
            self._repeat(EXTEND_TIMEOUT, EXTENSION_SECONDS / 2)

    def ready(self) -> None:
        self._stop_repeating()
        self._socket.send(READY)
        if self._socket.is_present and self._watchdog_seconds is not None:
            self._repeat(ALIVE, self._watchdog_seconds * WATCHDOG_FRACTION)

    def stopping(self) -> None:
        """The watchdog is still fed: a stop moves leaderships first, which may take a while."""
        self._socket.send(STOPPING)

    def close(self) -> None:
        self._stop_repeating()

    def _repeat(self, message: str, interval_seconds: float) -> None:
        """Send it from the event loop: a loop that hangs falls silent."""
        self._socket.send(message)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(interval_seconds, self._repeat, message, interval_seconds)

    def _stop_repeating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def watchdog_seconds(environment: Mapping[str, str], process_id: int) -> float | None:
    """The limit between two reports; None if the manager expects none from this process."""
    microseconds = environment.get("WATCHDOG_USEC", "")
    process = environment.get("WATCHDOG_PID", str(process_id))
    if not microseconds.isdecimal() or int(microseconds) == 0 or process != str(process_id):
        return None
    return int(microseconds) / 1_000_000
