"""Accepts connections, holds them to their limits, and stops without cutting anybody short.

One listener serves all addresses of a node, for the limits are the node's. Each connection is a
``server/network/connection.py``. TLS will be an ``ssl`` argument of ``create_server`` here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from msgspec import Struct

from riverrun.ports.aio import LogLimiter
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Counter, Metrics
from riverrun.server.dispatch.context import Peer
from riverrun.server.dispatch.router import Refused, Router
from riverrun.server.network.connection import Connection
from riverrun.server.network.outgoing import Outgoing
from riverrun.server.network.settings import NetworkSettings

SWEEP_SECONDS: Final = 2.0
LOG_SECONDS: Final = 1.0
LINGER_SECONDS: Final = 10.0


class Watch(Struct):
    """What the sweep saw of a connection last time."""

    received: int
    frames: int
    active_at: float
    frame_began_at: float
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
        outgoing: Outgoing | None = None,
        routers: Mapping[str, Router] | None = None,
        closed: Callable[[Peer], None] | None = None,
    ) -> None:
        """``routers`` serve the addresses of their names, ``router`` all others; ``closed`` hears
        of every connection that ends.
        """
        self._router = router
        self._routers = dict(routers or {})
        self._closed = closed
        self.outgoing = outgoing or Outgoing(settings.unsent_bytes_max)
        self.settings = settings
        self._clock = clock
        self._metrics = metrics
        self._log: Any = structlog.get_logger("riverrun.network")
        self._servers: list[asyncio.AbstractServer] = []
        self._connections: dict[int, Connection] = {}
        self._watched: dict[int, Watch] = {}
        self._per_host: dict[str, int] = {}
        self._next_id = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Event | None = None
        self.favoured: Connection | None = None
        self._waiting: dict[Connection, None] = {}
        self._log_limiter = LogLimiter(clock, interval_seconds=LOG_SECONDS)
        self.pending: dict[asyncio.Future[Any], None] = {}
        self.buffer_bytes = 0
        counter = metrics.counter
        self.bytes_received = counter("riverrun_received_bytes_total", "Bytes from clients.")
        self.bytes_sent = counter("riverrun_sent_bytes_total", "Bytes to clients.")
        self._accepted = counter("riverrun_connections_accepted_total", "Connections accepted.")
        self._refusals: dict[str, Counter] = {}
        metrics.gauge("riverrun_connections", "Open connections.", lambda: len(self._connections))
        metrics.gauge(
            "riverrun_requests_in_flight",
            "Requests that wait for something.",
            lambda: len(self.pending),
        )
        metrics.gauge(
            "riverrun_unsent_bytes",
            "Answers that clients do not read.",
            lambda: self.outgoing.unsent_bytes,
        )
        metrics.gauge(
            "riverrun_receive_buffer_bytes",
            "Memory of all receive buffers.",
            lambda: self.buffer_bytes,
        )

    def router(self, name: str) -> Router:
        """Who handles the requests that arrive on the address of that name."""
        return self._routers.get(name, self._router)

    def configure(self, settings: NetworkSettings) -> None:
        """Use other limits from now on; what is set when a connection begins stays with it."""
        self.settings = settings

    async def start(
        self, name: str, host: str, port: int, bound: socket.socket | None = None
    ) -> int:
        """Listen on an address; gives the port, which is chosen when 0 was asked for.

        ``bound`` is a socket that listens there already; it is ours from now on.
        """
        loop = asyncio.get_running_loop()
        connect, backlog = partial(self._connect, name), self.settings.backlog
        if bound is not None:
            server = await loop.create_server(connect, sock=bound, backlog=backlog)
        else:
            server = await loop.create_server(connect, host, port, backlog=backlog)
        self._servers.append(server)
        if self._sweeper is None:
            self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def stop(self, *, is_patient: bool = True) -> None:
        """Accept nobody, answer what is in flight, close; by force when that takes too long.

        A node that has failed is not patient: what is in flight may wait for what never comes.
        """
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections.values()):
            connection.begin_stop()
        self._all_gone = asyncio.Event()
        if self._connections and is_patient:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.stop_ms_max / 1000):
                    await self._all_gone.wait()
        for connection in list(self._connections.values()):
            connection.abort()
        left = list(self.pending)
        for future in left:
            future.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)

    def _connect(self, name: str) -> Connection:
        self._next_id += 1
        return Connection(self, name, self._next_id)

    # What connections ask and tell

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back in the next turn of the loop."""
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

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay."""
        host = connection.peer.client_host
        from_host = self._per_host.get(host, 0)
        if self._all_gone is not None:
            return False
        if len(self._connections) >= self.settings.connections_max:
            self.refused(connection.peer, Refused("max_connections", "too many connections"))
            return False
        if from_host >= self.settings.connections_per_ip_max:
            text = "too many connections from one address"
            self.refused(connection.peer, Refused("max_connections_per_ip", text))
            return False
        now = self._clock.monotonic()
        self._connections[connection.peer.connection_id] = connection
        self._watched[connection.peer.connection_id] = Watch(0, 0, now, now)
        self._per_host[host] = from_host + 1
        self._accepted.value += 1
        return True

    def forget(self, connection: Connection) -> None:
        """It is gone."""
        if self._connections.pop(connection.peer.connection_id, None) is None:
            return
        del self._watched[connection.peer.connection_id]
        host = connection.peer.client_host
        self._per_host[host] -= 1
        if self._per_host[host] == 0:
            del self._per_host[host]
        self._waiting.pop(connection, None)
        if self._closed is not None:
            self._closed(connection.peer)
        if self._all_gone is not None and not self._connections:
            self._all_gone.set()

    def refused(self, peer: Peer, refused: Refused) -> None:
        """Count why a connection ends, and say so in the log, once a second for each kind."""
        kind = refused.kind
        known = self._refusals.get(kind)
        if known is None:
            known = self._refusals[kind] = self._metrics.counter(
                "riverrun_connections_refused_total",
                "Connections that the node closed, by what the client did.",
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

    # Memory

    def may_grow(self, connection: Connection, extra_bytes: int) -> bool:
        """Whether a connection may take more memory for a large request.

        One connection always may, else many half requests could wait for each other for ever.
        """
        limit = self.settings.queued_bytes_max
        if limit < 0 or self.buffer_bytes + extra_bytes <= limit:
            return True
        if self.favoured is None or self.favoured is connection:
            self.favoured = connection
            return True
        self._waiting[connection] = None
        return False

    def settle(self, connection: Connection) -> None:
        """A large request was handled: keep its buffer for the next, unless too many do."""
        limit = self.settings.queued_bytes_max
        is_scarce = 0 <= limit < self.buffer_bytes or self.favoured is connection or self._waiting
        if is_scarce or self.buffer_bytes > self.settings.retained_bytes_max:
            connection.give_back_buffer()

    def released(self, connection: Connection) -> None:
        if self.favoured is connection:
            self.favoured = None
        if self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            first.memory_came_free()

    # Time

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for key, connection in list(self._connections.items()):
            self._look_at(connection, self._watched[key], now)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _look_at(self, connection: Connection, watch: Watch, now: float) -> None:
        if connection.is_closed:  # what it was sent last is still on its way, or is never read
            if watch.closed_at is None:
                watch.closed_at = now
            elif now - watch.closed_at >= LINGER_SECONDS:
                connection.abort()
            return
        if connection.in_flight:
            watch.active_at = watch.frame_began_at = now
            return
        if connection.frames != watch.frames or not connection.has_partial_frame:
            watch.frames, watch.frame_began_at = connection.frames, now
        if connection.received != watch.received:
            watch.received, watch.active_at = connection.received, now
        else:
            connection.give_back_buffer()
        if now - watch.active_at >= self.settings.idle_ms_max / 1000:
            self._count("idle")
            connection.close()
        elif now - watch.frame_began_at >= self.settings.frame_ms_max / 1000:
            self.refused(connection.peer, Refused("slow_frame", "a frame that does not end"))
            connection.close()

    def _count(self, reason: str) -> None:
        self._metrics.counter(
            "riverrun_connections_closed_total", "Connections that ended by time.", reason=reason
        ).value += 1
