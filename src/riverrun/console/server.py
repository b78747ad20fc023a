"""Runs the console: for a node on a unix socket, for ``riverrun console`` on a port.

In a node it ends when its input closes, because the node has then ended, and when nobody used it
for ten minutes and no login is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import uvicorn
import uvloop
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

from riverrun.console.app import Console, ConsoleSettings
from riverrun.security.tls import HANDSHAKE_SECONDS_MAX, server_context, tls_settings

IDLE_SECONDS_MAX: Final = 600.0
KEEP_ALIVE_SECONDS: Final = 60
SHUTDOWN_SECONDS_MAX: Final = 1
TICK_SECONDS: Final = 1.0
BACKLOG: Final = 128
CONNECTIONS_MAX: Final = 500
READY: Final = b"ready\n"
TLS_SOCKET: Final = "tls"
"""Beside the other socket."""
NICENESS: Final = 5
"""The broker goes first."""


class ServerLimits(Struct, frozen=True, kw_only=True):
    idle_seconds_max: float | None = None
    """How long a console that nobody uses goes on; None: until it is stopped."""


class NodeCertificate:
    """The certificate of the node, for HTTPS. A new file is used by the next connections."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Raises ``SettingError``."""
        self._settings = tls_settings(texts)
        self.context = server_context(self._settings)
        self._changed_at = self._newest()

    def _newest(self) -> float:
        return max((os.path.getmtime(path) for path in self._settings.files()), default=0.0)

    def refresh(self) -> None:
        """Read a changed file. While it is not valid, the old certificate stays."""
        location = self._settings.keystore_location
        try:
            changed_at = self._newest()
            if location and changed_at > self._changed_at:
                self._changed_at = changed_at
                self.context.load_cert_chain(location, password=self._settings.key_password or None)
        except (OSError, ssl.SSLError) as error:
            logging.getLogger("riverrun.console").warning("new certificate not used: %s", error)


class ConsoleServer(uvicorn.Server):
    """uvicorn, with our own end: it wakes up once in a second, and may leave signals alone."""

    def __init__(
        self,
        console: Console,
        limits: ServerLimits,
        certificate: NodeCertificate | None,
        *,
        takes_signals: bool,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                console.app,
                http="h11",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS_MAX,
            )
        )
        self._console = console
        self._limits = limits
        self._certificate = certificate
        self._takes_signals = takes_signals
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if self._takes_signals:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.stop)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The last socket serves HTTPS if there is a certificate."""
        assert sockets, "sockets are made by us"
        if self._certificate is None:
            await super().startup(sockets)
            return
        await super().startup(sockets[:-1])
        protected = await asyncio.get_running_loop().create_server(
            lambda: H11Protocol(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            ),
            sock=sockets[-1],
            ssl=self._certificate.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
        )
        self.servers.append(protected)

    async def main_loop(self) -> None:
        loop = asyncio.get_running_loop()
        used_at = loop.time()
        while not await self.on_tick(0):
            await self._console.sessions.drop_expired()
            if self._certificate is not None:
                self._certificate.refresh()
            if self.server_state.connections or self._console.sessions.count:
                used_at = loop.time()
            limit = self._limits.idle_seconds_max
            if limit is not None and loop.time() - used_at > limit:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopping.wait()


async def serve_on_socket(settings: ConsoleSettings, path: str, limits: ServerLimits) -> None:
    """Serve a node until its end of standard input closes. Writes "ready" to standard output. With
    a certificate, a second socket beside the first serves HTTPS."""
    console = Console(settings)
    certificate = NodeCertificate(settings.tls) if settings.tls else None
    server = ConsoleServer(console, limits, certificate, takes_signals=False)
    loop = asyncio.get_running_loop()
    # A Ctrl-C in a terminal reaches the node too, whose end closes our input.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, server.stop)
    _watch_input(sys.stdin.fileno(), server.stop)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(_unix_socket(path))]
        if certificate is not None:
            beside = os.path.join(os.path.dirname(path), TLS_SOCKET)
            sockets.append(stack.enter_context(_unix_socket(beside)))
        serving = asyncio.ensure_future(server.serve(sockets=sockets))
        os.write(sys.stdout.fileno(), READY)
        await serving


def _watch_input(descriptor: int, closed: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            closed()

    loop.add_reader(descriptor, readable)


@contextlib.contextmanager
def _unix_socket(path: str) -> Iterator[socket.socket]:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        yield listening
    finally:
        listening.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
            os.rmdir(os.path.dirname(path))


async def serve_on_port(
    settings: ConsoleSettings, host: str, port: int, started: Callable[[int], None]
) -> None:
    """Serve until SIGINT or SIGTERM. ``started`` gets the port in use. Raises OSError."""
    console = Console(settings)
    server = ConsoleServer(console, ServerLimits(), None, takes_signals=True)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=BACKLOG) as listening:
        listening.setblocking(False)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        started(listening.getsockname()[1])
        await serving


def run_on_port(
    settings: ConsoleSettings, host: str, port: int, started: Callable[[int], None]
) -> None:
    uvloop.run(serve_on_port(settings, host, port, started))


def run_on_socket(settings: ConsoleSettings, path: str, limits: ServerLimits) -> None:
    uvloop.run(serve_on_socket(settings, path, limits))
