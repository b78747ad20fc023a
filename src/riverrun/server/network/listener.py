"""Accepts client connections, enforces their limits, and closes them when the node stops.

One listener serves all addresses of a node, because the limits apply to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import structlog
from msgspec import Struct

from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Counter, Metrics
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Refused, Router
from riverrun.server.network.connection import ClientConnection
from riverrun.server.network.connection_limits import ConnectionLimits
from riverrun.server.network.memory import ReceiveMemory, SendMemory
from riverrun.server.network.settings import NetworkSettings
from riverrun.server.network.tls_acceptor import TlsAcceptor
from riverrun.server.security.guard import ListenerGuard

SWEEP_SECONDS: Final = 2.0
LOG_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 10.0


class ConnectionActivity(Struct):
    """The state of a connection at the last sweep."""

    received: int
    frames: int
    active_at: float
    frame_began_at: float
    began_at: float
    closed_at: float | None = None


class Listener:
    """All client connections of one node."""

    def __init__(
        self,
        router: Router,
        settings: NetworkSettings,
        *,
        clock: Clock,
        metrics: Metrics,
        send_memory: SendMemory | None = None,
        closed: Callable[[Peer], None] | None = None,
        guards: Mapping[str, ListenerGuard] | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        """``router`` serves the addresses that are started without a router of their own.
        ``closed`` is called for every connection that ends. ``guards`` protect the addresses with
        TLS or SASL, by name. ``limits`` decide about new connections; by default those of
        ``settings``.
        """
        self._router = router
        self._guards = guards or {}
        self._limits = limits or ConnectionLimits(settings, {}, (), lambda _: None)
        self._per_listener: dict[str, int] = {}
        self._acceptors: list[TlsAcceptor] = []
        self._routers: dict[str, Router] = {}
        self._closed = closed
        self.receive_memory = ReceiveMemory(
            queued_bytes_max=settings.queued_bytes_max,
            retained_bytes_max=settings.retained_bytes_max,
        )
        self.send_memory = send_memory or SendMemory(settings.unsent_bytes_max)
        self.settings = settings
        self._clock = clock
        self._metrics = metrics
        self._log: Any = structlog.get_logger("riverrun.network")
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[int, ClientConnection] = {}
        self._activity: dict[int, ConnectionActivity] = {}
        self._per_host: dict[str, int] = {}
        self._next_id = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None
        self._log_limiter = LogLimiter(clock, interval_seconds=LOG_SECONDS)
        self.pending: dict[asyncio.Future[Any], None] = {}
        counter = metrics.counter
        self.bytes_received = counter("riverrun_received_bytes_total", "Bytes from clients.")
        self.bytes_sent = counter("riverrun_sent_bytes_total", "Bytes to clients.")
        self._accepted = counter("riverrun_connections_accepted_total", "Connections accepted.")
        self._delayed = counter(
            "riverrun_connections_delayed_total", "Connections above the rate of new connections."
        )
        self._refusals: dict[str, Counter] = {}
        metrics.gauge("riverrun_connections", "Open connections.", lambda: self.connection_count)
        metrics.gauge(
            "riverrun_requests_in_flight",
            "Requests whose response is pending.",
            lambda: len(self.pending),
        )
        metrics.gauge(
            "riverrun_unsent_bytes",
            "Bytes of responses that clients do not read.",
            lambda: self.send_memory.unsent_bytes,
        )
        metrics.gauge(
            "riverrun_receive_buffer_bytes",
            "Memory of all receive buffers.",
            lambda: self.receive_memory.used_bytes,
        )

    def router(self, name: str) -> Router:
        """The router for requests to the address with this name."""
        return self._routers.get(name, self._router)

    def guard(self, name: str) -> ListenerGuard | None:
        """The protection of the address with this name; None for PLAINTEXT."""
        return self._guards.get(name)

    def configure(self, settings: NetworkSettings, texts: Mapping[str, str]) -> None:
        """Use new limits. Options that are set when a connection begins stay as they are.
        ``texts`` may have limits of single listeners."""
        self.settings = settings
        self._limits.configure(settings, texts)

    def find(self, connection_id: int) -> ClientConnection | None:
        """An open connection."""
        return self._connections.get(connection_id)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections(self) -> Iterator[tuple[ClientConnection, ConnectionActivity]]:
        """The open connections, oldest first, with their state at the last sweep."""
        for key, connection in self._connections.items():
            yield connection, self._activity[key]

    async def start(
        self,
        name: str,
        host: str,
        port: int,
        bound: socket.socket | None = None,
        *,
        router: Router | None = None,
    ) -> int:
        """Listen on an address; returns the port, which the system chooses if it is 0.

        ``bound`` is a socket that listens there already. The listener takes it over.
        """
        loop = asyncio.get_running_loop()
        if router is not None:
            self._routers[name] = router
        connect, backlog = partial(self._connect, name), self.settings.backlog
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        guard = self.guard(name)
        if guard is not None and guard.protocol.has_tls:
            acceptor = TlsAcceptor(
                guard,
                connect,
                partial(self._handshake_failed, name),
                backlog=backlog,
                handshakes_per_host_max=self.settings.tls_handshakes_per_ip_max,
            )
            self._acceptors.append(acceptor)
            return await acceptor.start(host, port, bound)
        if bound is not None:
            server = await loop.create_server(connect, sock=bound, backlog=backlog)
        else:
            server = await loop.create_server(connect, host, port, backlog=backlog)
        self._servers.append(server)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def stop(self, *, waits_for_requests: bool = True) -> None:
        """Stop accepting, complete the requests in flight, and close. Abort connections after a
        timeout.

        A failed node does not wait: its requests in flight may never complete.
        """
        for server in self._servers:
            server.close()
        for acceptor in self._acceptors:
            await acceptor.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections.values()):
            connection.begin_stop()
        self._all_closed = asyncio.Event()
        if self._connections and waits_for_requests:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.stop_ms_max / 1000):
                    await self._all_closed.wait()
        for connection in list(self._connections.values()):
            connection.abort()
        left = list(self.pending)
        for future in left:
            future.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    def _connect(self, name: str) -> ClientConnection:
        self._next_id += 1
        return ClientConnection(self, name, self._next_id)

    def _handshake_failed(self, name: str, host: str, reason: str) -> None:
        self.refused(Peer(host, name, 0), Refused("tls_handshake", reason))

    # Called by connections

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next iteration of the event loop."""
        asyncio.get_running_loop().call_soon(callback)

    def tune(self, raw: socket.socket) -> None:
        """Set the options of a new socket."""
        if raw.family not in (socket.AF_INET, socket.AF_INET6):
            return
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.settings.send_buffer_bytes >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.settings.send_buffer_bytes)
        if self.settings.receive_buffer_bytes >= 0:
            size = self.settings.receive_buffer_bytes
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def admit(self, connection: ClientConnection) -> bool:
        """Whether a new connection is within the limits. It may have to wait for its turn."""
        name, host = connection.peer.listener, connection.peer.client_host
        from_host = self._per_host.get(host, 0)
        if self._all_closed is not None:
            return False
        now = self._clock.monotonic()
        arrival = self._limits.check(
            name,
            host,
            on_node=len(self._connections),
            on_listener=self._per_listener.get(name, 0),
            from_address=from_host,
            now=now,
        )
        if arrival.refusal is not None:
            self.refused(connection.peer, Refused(arrival.refusal, arrival.detail))
            return False
        if arrival.seconds > 0:
            connection.mute(arrival.seconds)
            self._delayed.value += 1
        self._per_listener[name] = self._per_listener.get(name, 0) + 1
        self._connections[connection.peer.connection_id] = connection
        self._activity[connection.peer.connection_id] = ConnectionActivity(0, 0, now, now, now)
        self._per_host[host] = from_host + 1
        self._accepted.value += 1
        return True

    def mute(self, connection_id: int, seconds: float) -> None:
        """Do not read from a connection for some time."""
        connection = self.find(connection_id)
        if connection is not None:
            connection.mute(seconds)

    def remove(self, connection: ClientConnection) -> None:
        """Remove a closed connection."""
        if self._connections.pop(connection.peer.connection_id, None) is None:
            return
        del self._activity[connection.peer.connection_id]
        host = connection.peer.client_host
        self._per_listener[connection.peer.listener] -= 1
        self._per_host[host] -= 1
        if self._per_host[host] == 0:
            del self._per_host[host]
        if self._closed is not None:
            self._closed(connection.peer)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def refused(self, peer: Peer, refused: Refused) -> None:
        """Count why the node closes a connection, and log it once a second for each reason."""
        kind = refused.kind
        known = self._refusals.get(kind)
        if known is None:
            known = self._refusals[kind] = self._metrics.counter(
                "riverrun_connections_refused_total",
                "Connections that the node closed, by reason.",
                reason=kind,
            )
        known.value += 1
        unlogged = self._log_limiter.admit(kind)
        if unlogged is None:
            return
        fields: dict[str, Any] = {"reason": kind, "detail": str(refused)[:300]}
        fields |= {"client": peer.client_host, "listener": peer.listener}
        if unlogged:
            fields["unlogged"] = unlogged
        if kind == "bug":
            self._log.error("connection closed", exc_info=refused.__cause__, **fields)
        else:
            self._log.warning("connection closed", **fields)

    # Timeouts

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for key, connection in list(self._connections.items()):
            self._check(connection, self._activity[key], now)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _check(self, connection: ClientConnection, last: ConnectionActivity, now: float) -> None:
        if connection.is_closed:  # its last responses may still be unsent
            if last.closed_at is None:
                last.closed_at = now
            elif now - last.closed_at >= LINGER_SECONDS:
                connection.abort()
            return
        if connection.awaits_login and now - last.began_at >= self.settings.login_ms_max / 1000:
            self.refused(connection.peer, Refused("slow_login", "no login in time"))
            connection.close()
            return
        if connection.in_flight or connection.is_muted:
            last.active_at = last.frame_began_at = now
            return
        if connection.frames != last.frames or not connection.has_partial_frame:
            last.frames, last.frame_began_at = connection.frames, now
        if connection.received != last.received:
            last.received, last.active_at = connection.received, now
        else:
            connection.drop_idle_buffer()
        if now - last.active_at >= self.settings.idle_ms_max / 1000:
            self._count("idle")
            connection.close()
        elif now - last.frame_began_at >= self.settings.frame_ms_max / 1000:
            self.refused(connection.peer, Refused("slow_frame", "the frame did not end in time"))
            connection.close()

    def _count(self, reason: str) -> None:
        self._metrics.counter(
            "riverrun_connections_closed_total", "Connections closed by a timeout.", reason=reason
        ).value += 1
