"""Messages between a service manager, a unit of several brokers, and its brokers (``sd_notify``).

The manager knows one process, the supervisor. The supervisor reports that it is ready when all
brokers are. If the manager wants a sign of life, so does the supervisor from each broker: a broker
whose event loop hangs is killed and started again, and the others keep running.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final

from riverrun.server.service_manager import (
    ALIVE,
    EXTEND_TIMEOUT,
    EXTENSION_SECONDS,
    READY,
    STOPPING,
    WATCHDOG_FRACTION,
    NotifySocket,
    watchdog_seconds,
)

OF_THE_MANAGER: Final = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)
"""Variables that are meant for the supervisor and not for its brokers."""
MESSAGE_BYTES: Final = 512


class ManagerReports:
    """Reports of the unit to the service manager, repeated as long as ``due`` is called."""

    def __init__(self, environment: Mapping[str, str], process_id: int) -> None:
        self._socket = NotifySocket(environment)
        watchdog = watchdog_seconds(environment, process_id)
        self.watchdog_seconds = watchdog if self._socket.is_present else None
        self._message = EXTEND_TIMEOUT
        self._interval: float | None = EXTENSION_SECONDS / 2 if self._socket.is_present else None
        self._next = 0.0

    def ready(self) -> None:
        self._socket.send(READY)
        self._message, self._next = ALIVE, 0.0
        limit = self.watchdog_seconds
        self._interval = None if limit is None else limit * WATCHDOG_FRACTION

    def stopping(self) -> None:
        self._socket.send(STOPPING)

    def due(self, now: float) -> float | None:
        """Send what is due; returns when the next message is, if there is one."""
        if self._interval is None:
            return None
        if now >= self._next:
            self._socket.send(self._message)
            self._next = now + self._interval
        return self._next


class SignsOfLife:
    """One socket per broker, on which it reports like to a service manager."""

    def __init__(self, numbers: Sequence[int], limit_seconds: float | None) -> None:
        self._limit_seconds = limit_seconds
        self._last: dict[int, float] = {}
        self.sockets: dict[int, socket.socket] = {}
        if limit_seconds is None:
            return
        for number in numbers:
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listening.setblocking(False)
            listening.bind(f"\0{_name(number)}")
            self.sockets[number] = listening

    def variables(self, number: int) -> dict[str, str]:
        """The environment of the broker."""
        if self._limit_seconds is None:
            return {}
        microseconds = str(int(self._limit_seconds * 1_000_000))
        return {"NOTIFY_SOCKET": f"@{_name(number)}", "WATCHDOG_USEC": microseconds}

    def receive(self, number: int, now: float) -> None:
        try:
            message = self.sockets[number].recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        if message == ALIVE.encode():
            self._last[number] = now

    def forget(self, number: int) -> None:
        """The broker has ended. The next one is silent until it is ready."""
        self._last.pop(number, None)

    def silent(self, now: float) -> list[int]:
        """The brokers that were alive and have not reported for longer than the limit."""
        limit = self._limit_seconds
        if limit is None:
            return []
        return [number for number, last in self._last.items() if now - last > limit]

    def next_check(self) -> float | None:
        if self._limit_seconds is None or not self._last:
            return None
        return min(self._last.values()) + self._limit_seconds


def _name(number: int) -> str:
    """In the abstract namespace: paths of data directories may exceed the limit of an address."""
    return f"riverrun-{os.getpid()}-{number}"
