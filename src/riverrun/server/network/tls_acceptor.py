"""Accepts connections to an address with TLS.

asyncio's own servers keep one TLS context for their whole life. This one takes the guard's current
context for each connection, so a replaced certificate is used at once. Handshakes run concurrently,
within a time limit and a limit on their number, so slow clients do not delay others for long.

``joined_parts`` keeps the number of TLS records of a response small.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from riverrun.ports.aio import OwnedTasks
from riverrun.security.tls import HANDSHAKE_SECONDS_MAX
from riverrun.server.security.guard import ListenerGuard

HANDSHAKES_MAX: Final = 1000
RETRY_SECONDS: Final = 0.1
"""The pause after a failed accept, such as too many open files."""
TLS_RECORD_BYTES: Final = 16 * 1024
"""Parts of a response below this size are joined before they are encrypted. Each part of a gathered
write would otherwise become a TLS record of its own."""


class TlsAcceptor:
    """One address with TLS."""

    def __init__(
        self,
        guard: ListenerGuard,
        connect: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[str, str], None],
        *,
        backlog: int,
        handshakes_per_host_max: int,
    ) -> None:
        """``failed`` gets the host and the reason of each failed handshake. A host with more
        unfinished handshakes than ``handshakes_per_host_max`` gets no further ones."""
        self._guard = guard
        self._connect = connect
        self._failed = failed
        self._backlog = backlog
        self._per_host_max = handshakes_per_host_max
        self._sockets: list[socket.socket] = []
        self._tasks = OwnedTasks(lambda _, error: failed("", str(error)))
        self._handshakes = asyncio.Semaphore(HANDSHAKES_MAX)
        self._per_host: dict[str, int] = {}

    async def start(self, host: str, port: int, bound: socket.socket | None = None) -> int:
        """Listen; returns the port."""
        loop = asyncio.get_running_loop()
        if bound is not None:
            self._sockets.append(bound)
        else:
            infos = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(infos):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(address)
        for listening in self._sockets:
            listening.setblocking(False)
            listening.listen(self._backlog)
            self._tasks.start(self._accept(listening), name="tls")
        chosen: int = self._sockets[0].getsockname()[1]
        return chosen

    async def stop(self) -> None:
        await self._tasks.close()
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._handshakes.acquire()
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:
                self._handshakes.release()
                self._failed("", f"cannot accept a connection: {error}")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except asyncio.CancelledError:
                self._handshakes.release()
                raise
            host = str(address[0])
            if self._per_host.get(host, 0) >= self._per_host_max:
                self._handshakes.release()
                accepted.close()
                self._failed(host, "too many unfinished handshakes")
                continue
            self._per_host[host] = self._per_host.get(host, 0) + 1
            self._tasks.start(self._shake_hands(accepted, host), name="tls handshake")

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        loop = asyncio.get_running_loop()
        context = self._guard.tls
        assert context is not None, "a guard with TLS has a context"
        try:
            await loop.connect_accepted_socket(
                self._connect,
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
            )
        except (OSError, ssl.SSLError) as error:
            with contextlib.suppress(OSError):
                accepted.close()
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", "")
            self._failed(host, str(reason or error or type(error).__name__))
        finally:
            self._handshakes.release()
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]


def joined_parts(parts: list[Any]) -> list[Any]:
    """The same bytes, with neighbouring small parts joined."""
    joined: list[Any] = []
    small: list[Any] = []
    size = 0
    for part in parts:
        if len(part) >= TLS_RECORD_BYTES or size + len(part) > TLS_RECORD_BYTES:
            if small:
                joined.append(b"".join(small))
            small, size = [], 0
        if len(part) >= TLS_RECORD_BYTES:
            joined.append(part)
        else:
            small.append(part)
            size += len(part)
    if small:
        joined.append(b"".join(small))
    return joined
