"""The console of a node: a process of its own, and the relay of HTTP connections to it.

The first request for a page starts the process. It listens on a unix socket in a private folder,
gets its settings as one line on standard input, and writes "ready". It ends when its input closes,
so it never outlives the node, and when nobody used it for a while. The node only copies bytes
between connections, with back pressure, so the event loop of the broker runs no code of the
console.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, cast

import structlog

from riverrun.ports.aio import OwnedTasks
from riverrun.security.protocols import SecurityProtocol
from riverrun.security.tls import SSL_NAMES
from riverrun.server.security.settings import listener_protocols, of_listener

if TYPE_CHECKING:
    from riverrun.server.settings import NodeSettings

START_SECONDS_MAX: Final = 30.0
END_SECONDS_MAX: Final = 3.0
RETRY_SECONDS: Final = 5.0
"""After a failed start, requests get the same error for this time."""
RELAYS_MAX: Final = 100
EVICTED_SECONDS: Final = 5.0
"""When all connections are in use, one without any bytes for this time makes room."""
IDLE_SECONDS_MAX: Final = 600.0
"""A connection without any bytes for this time is closed."""
SWEEP_SECONDS: Final = 30.0
BUFFER_BYTES_MAX: Final = 256 * 1024
READY: Final = b"ready\n"
CLUSTER_NAME: Final = "main"
PREFERENCE: Final = (
    SecurityProtocol.SASL_SSL,
    SecurityProtocol.SASL_PLAINTEXT,
    SecurityProtocol.SSL,
    SecurityProtocol.PLAINTEXT,
)
"""The console uses the best protected listener. Another one could let users past their login."""
KEY_NAMES: Final = ("ssl.key", "ssl.client.auth")
"""Not among the settings of the console's connections: it must not act as the node."""
PLAIN_SOCKET: Final = "socket"
TLS_SOCKET: Final = "tls"
TLS_FIRST_BYTE: Final = 0x16
"""A connection with TLS begins with a record of the type handshake."""
NO_CERTIFICATE: Final = (
    "The client listener {name} requires client certificates, and a browser's session has none."
)
REMEDY: Final = (
    "Add a listener with SASL, or run `riverrun console --command-config FILE` with a certificate."
)

log = structlog.get_logger("riverrun.console")


class ConsoleStartFailed(Exception):
    """The text says why."""


def start_data(settings: NodeSettings) -> bytes:
    """What the console must know of its node, as one line of JSON."""
    addresses = {address.name: address for address in settings.advertised()}
    protocols = listener_protocols(settings.given, list(addresses))
    name = min(addresses, key=lambda each: PREFERENCE.index(protocols[each]))
    address, protocol = addresses[name], protocols[name]
    host = f"[{address.host}]" if ":" in address.host else address.host
    texts = of_listener(settings.given, name)
    properties = {"security.protocol": protocol.name}
    if protocol.has_tls:
        properties |= {
            each: texts[each]
            for each in SSL_NAMES
            if each in texts and not each.startswith(KEY_NAMES)
        }
    cluster = {
        "name": CLUSTER_NAME,
        "bootstrap": f"{host}:{address.port}",
        "properties": properties,
    }
    if protocol.has_tls and _client_auth(settings.given, name, protocol) == "required":
        cluster |= {"refusal": NO_CERTIFICATE.format(name=name), "remedy": REMEDY}
    told: dict[str, object] = {
        "clusters": [cluster],
        "is_local": is_loopback(_http_host(settings)),
        "hosts": host_names(settings),
    }
    if protocol.has_tls:
        told["tls"] = {
            each: texts[each] for each in SSL_NAMES if each in texts and each != "ssl.client.auth"
        }
    return json.dumps(told).encode() + b"\n"


def _http_host(settings: NodeSettings) -> str:
    return settings.identity.http_listener.rpartition(":")[0]


def host_names(settings: NodeSettings) -> list[str]:
    """The names by which browsers may reach the console, beside addresses and localhost."""
    listening = (address.host for address in settings.listening())
    advertised = (address.host for address in settings.advertised())
    names = (_http_host(settings), *listening, *advertised, socket.gethostname())
    # A listener at * has all addresses. Among allowed names, it would stand for all names.
    own = (name for name in names if name not in ("", "*"))
    return list(dict.fromkeys((*own, *settings.identity.console_hosts)))


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _client_auth(texts: Mapping[str, str], name: str, protocol: SecurityProtocol) -> str:
    """On SASL_SSL, ssl.client.auth counts only with the listener's prefix, as in Kafka."""
    of_this = texts.get(f"listener.name.{name.lower()}.ssl.client.auth")
    if of_this is None and not protocol.has_sasl:
        of_this = texts.get("ssl.client.auth")
    return (of_this or "none").strip().lower()


class ConsoleProcess:
    """Starts the process when it is needed, and again after it has ended."""

    def __init__(self, data: bytes, *, has_tls: bool = False) -> None:
        """``has_tls``: it serves HTTPS on a second socket, with the certificate of the node."""
        self._data = data
        self.has_tls = has_tls
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._folder = ""
        self._failure = ""
        self._retry_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def folder(self) -> str:
        """Where the sockets of the running process are. Raises ``ConsoleStartFailed``."""
        async with self._lock:
            if not self.is_running:
                await self._start()
            return self._folder

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            raise ConsoleStartFailed(self._failure)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await self._launch()
        except (OSError, ConsoleStartFailed) as error:
            await self._end()
            is_late = isinstance(error, TimeoutError)
            reason = f"it was not ready within {START_SECONDS_MAX:g} s" if is_late else str(error)
            self._failure = reason
            self._retry_at = loop.time() + RETRY_SECONDS
            log.error("console did not start", error=reason)
            raise ConsoleStartFailed(reason) from None

    async def _launch(self) -> None:
        self._remove_folder()
        self._folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="riverrun-console-")
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "riverrun.console",
            "--socket",
            os.path.join(self._folder, PLAIN_SOCKET),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Do not search the current directory for modules.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(self._data)
            await process.stdin.drain()
        if await process.stdout.readline() != READY:
            status = await process.wait()
            raise ConsoleStartFailed(f"its process ended with status {status}; see the log")
        log.info("console started", pid=process.pid)

    async def stop(self) -> None:
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        """Close the input of the process, and wait until it has ended."""
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.close()
            try:
                async with asyncio.timeout(END_SECONDS_MAX):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._remove_folder()

    def _remove_folder(self) -> None:
        folder, self._folder = self._folder, ""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)  # at most two sockets


class ConsoleRelay:
    """Copies the connections of browsers to the console and back."""

    def __init__(self, process: ConsoleProcess) -> None:
        self.process = process
        self._relays: dict[_Relay, None] = {}
        self._tasks = OwnedTasks(self._relay_failed)
        self._sweep: asyncio.TimerHandle | None = None

    def takes(self, first_byte: int) -> bool:
        """Whether a connection is for the console because it begins with TLS."""
        return first_byte == TLS_FIRST_BYTE and self.process.has_tls

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Serve a connection to its end. ``received`` begins with its first request, or with
        TLS."""
        relay = _Relay(self, transport, received)
        if len(self._relays) >= RELAYS_MAX and not self._evict():
            relay.refuse(f"more than {RELAYS_MAX} connections are open")
            return
        self._relays[relay] = None
        self.connect(relay)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_idle)

    def _evict(self) -> bool:
        """Close the connection that was idle for the longest time. Clients that send half a request
        must not keep everybody out."""
        idlest = min(self._relays, key=lambda one: one.used_at)
        if idlest.used_at + EVICTED_SECONDS > asyncio.get_running_loop().time():
            return False
        self.closed(idlest)
        idlest.abort()
        return True

    def connect(self, relay: _Relay) -> None:
        """Connect a relay to the console, also again."""
        self._tasks.start(relay.run(), name="console connection")

    def closed(self, relay: _Relay) -> None:
        self._relays.pop(relay, None)

    def _relay_failed(self, _: str, error: BaseException) -> None:
        log.error("console connection failed", error=str(error))

    def _sweep_idle(self) -> None:
        self._sweep = None
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS_MAX
        for relay in list(self._relays):
            if relay.used_at < oldest:
                relay.abort()
        if self._relays:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep_idle)

    async def stop(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for relay in list(self._relays):
            relay.abort()
        await self._tasks.close()
        await self.process.stop()


class _Relay:
    """One connection of a browser and its counterpart to the console."""

    def __init__(self, owner: ConsoleRelay, transport: asyncio.Transport, received: bytes) -> None:
        self._owner = owner
        self._received = received
        self._is_answered = False
        self._is_tls = received[0] == TLS_FIRST_BYTE
        self._is_repeatable = self._is_tls or received.startswith((b"GET ", b"HEAD "))
        self.used_at = asyncio.get_running_loop().time()
        self._front = _RelayEnd(self)
        self._front.transport = transport
        self._back: _RelayEnd | None = None
        transport.pause_reading()
        transport.set_write_buffer_limits(BUFFER_BYTES_MAX)
        transport.set_protocol(self._front)

    async def run(self) -> None:
        """Connect to the console, which may have to start first."""
        try:
            try:
                await self._connect()
            except OSError:
                # It ended just now, because nobody used it.
                await self._connect()
        except (OSError, ConsoleStartFailed) as error:
            self.refuse(str(error))

    async def _connect(self) -> None:
        folder = await self._owner.process.folder()
        path = os.path.join(folder, TLS_SOCKET if self._is_tls else PLAIN_SOCKET)
        back = _RelayEnd(self)
        await asyncio.get_running_loop().create_unix_connection(lambda: back, path)
        front, transport = self._front.transport, back.transport
        assert transport is not None, "connected"
        if front is None:
            transport.abort()  # the browser has gone
            return
        self._back = back
        transport.set_write_buffer_limits(BUFFER_BYTES_MAX)
        transport.write(self._received)
        front.resume_reading()

    def forward(self, source: _RelayEnd, data: bytes) -> None:
        self.used_at = asyncio.get_running_loop().time()
        if source is self._front:
            self._is_repeatable = False  # the console has more than the first part
        else:
            self._is_answered = True
        target = self._other(source)
        if target is not None and target.transport is not None:
            target.transport.write(data)

    def hold(self, full: _RelayEnd, *, is_held: bool) -> None:
        """Stop or continue to read for an end whose send buffer is full."""
        source = self._other(full)
        if source is None or source.transport is None or source.transport.is_closing():
            return
        if is_held:
            source.transport.pause_reading()
        else:
            source.transport.resume_reading()

    def lost(self, end: _RelayEnd) -> None:
        other = self._other(end)
        is_early = end is self._back and not self._is_answered and self._is_repeatable
        if is_early and self._front.transport is not None:
            # The console ended between our connection and its first byte: start it again.
            self._is_repeatable = False
            self._back = None
            self._front.transport.pause_reading()
            self._owner.connect(self)
            return
        if other is not None and other.transport is not None:
            other.transport.close()
        if self._front.transport is None:
            self._owner.closed(self)

    def _other(self, end: _RelayEnd) -> _RelayEnd | None:
        return self._back if end is self._front else self._front

    def refuse(self, reason: str) -> None:
        """Respond that the console cannot be used now, and why."""
        transport = self._front.transport
        if transport is not None and not transport.is_closing():
            if not self._is_tls:
                transport.write(_unavailable(self._received, reason))
            transport.close()
        else:
            self._owner.closed(self)

    def abort(self) -> None:
        for end in (self._front, self._back):
            if end is not None and end.transport is not None:
                end.transport.abort()


class _RelayEnd(asyncio.Protocol):
    """One of the two connections of a relay."""

    def __init__(self, relay: _Relay) -> None:
        self._relay = relay
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop has a type of its own

    def data_received(self, data: bytes) -> None:
        self._relay.forward(self, data)

    def pause_writing(self) -> None:
        self._relay.hold(self, is_held=True)

    def resume_writing(self) -> None:
        self._relay.hold(self, is_held=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._relay.lost(self)


def _unavailable(request: bytes, reason: str) -> bytes:
    path = request.split(b" ", 2)[1] if request.count(b" ") >= 2 else b"/"
    remedy = "The log of the node has more. The command line and /metrics work as usual."
    if path.startswith((b"/api/", b"/v3/")):
        kind = "application/json"
        error = {"code": "error", "message": f"The console cannot be used: {reason}."}
        body = json.dumps({"error": {**error, "remedy": remedy}}).encode()
    else:
        kind = "text/plain; charset=utf-8"
        body = f"The console of this node cannot be used: {reason}.\n{remedy}\n".encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {kind}\r\nRetry-After: 5\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def console_for(settings: NodeSettings) -> ConsoleRelay | None:
    """The console of a node; None if it has none. A controller alone serves no clients."""
    if not settings.identity.has_console or not settings.formation.is_broker:
        return None
    data = start_data(settings)
    return ConsoleRelay(ConsoleProcess(data, has_tls="tls" in json.loads(data)))
