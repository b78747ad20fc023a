"""A TCP proxy with faults in front of every listener of a cluster.

It runs as its own process, so that it does not share a core with the clients. It reads its routes
and then commands as JSON lines from standard input, and responds to each line. It identifies the
source of a connection by the process that owns the other end, so nodes need no configuration.

A listener of the proxy is open only while its target listener is open. Refused connections show
nodes that a process has stopped, and a proxy that always accepts would hide that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import cast

from riverrun.chaos.faults.link_faults import (
    ANY,
    CLEAR,
    CLIENTS,
    Direction,
    LinkFault,
    LinkFaults,
    Mode,
)
from riverrun.chaos.faults.socket_owners import SocketOwners

HOST = "127.0.0.1"
LOOK_SECONDS = 0.025
HELD_BYTES_MAX = 1 << 20
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRoute:
    """A listener of a node, and the proxy's port for it."""

    node: str
    channel: str
    port: int
    target_port: int


class ProxyEnd(asyncio.Protocol):
    """One end of a proxied connection; it forwards bytes to the other end, subject to faults."""

    def __init__(self, link: ProxyLink, source: str, target: str) -> None:
        self.link = link
        self.source, self.target = source, target
        self.fault = CLEAR
        self.transport: asyncio.Transport | None = None
        self.other: ProxyEnd | None = None
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._waiting_bytes = 0
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_write_paused = False
        self._is_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.fault.mode is Mode.DROP:
            self.link.has_lost = True
            return
        other = self.other
        if not self._waiting and self.fault.is_clear and other is not None and other.transport:
            other.transport.write(data)
            return
        due = asyncio.get_running_loop().time() + self.fault.delay_ms / 1000
        self._waiting.append((due, data))
        self._waiting_bytes += len(data)
        self._pause()
        self.pump()

    def eof_received(self) -> bool:
        self._is_ended = True
        self.link.look_if_node(self)
        self.pump()
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self.transport = None
        self.link.end_lost(self)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        if self.other is not None:
            self.other._pause()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self.other is not None:
            self.other._pause()

    def _pause(self) -> None:
        """Read only while the buffer has room and the other end accepts writes."""
        if self.transport is None or self.transport.is_closing():
            return
        is_slow = self.other is not None and self.other._is_write_paused
        if is_slow or self._waiting_bytes > HELD_BYTES_MAX:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def pump(self) -> None:
        """Forward the bytes that are due, and schedule the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        other = self.other
        if other is None or other.transport is None or self.fault.mode is Mode.HOLD:
            return
        while self._waiting:
            due, data = self._waiting[0]
            due = max(due, self._free_at)
            now = loop.time()
            if due > now:
                self._timer = loop.call_at(due, self.pump)
                break
            self._waiting.popleft()
            self._waiting_bytes -= len(data)
            rate = self.fault.bytes_per_second
            if rate:
                # Forward small pieces; a long response would otherwise pass at once.
                piece, rest = data[: max(rate // 20, 1)], data[max(rate // 20, 1) :]
                self._free_at = now + len(piece) / rate
                if rest:
                    self._waiting.appendleft((due, rest))
                    self._waiting_bytes += len(rest)
                data = piece
            other.transport.write(data)
        self._pause()
        if self._is_ended and not self._waiting and other.transport.can_write_eof():
            with contextlib.suppress(OSError):
                other.transport.write_eof()
            if other._is_ended and not other._waiting:
                self.link.close()

    def reset(self) -> None:
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()


class ProxyLink:
    """A proxied connection: the end at its source and the end at the node."""

    def __init__(self, network: ProxyNetwork, route: ProxyRoute) -> None:
        self.network, self.route = network, route
        self.has_lost = False
        self.is_half_open = False
        self.is_ended = False
        self.is_passable = asyncio.Event()
        """Set when both directions are open, or when the connection is closed."""
        self.ends: list[ProxyEnd] = []

    def opened_by(self, source: str) -> None:
        near, far = ProxyEnd(self, source, self.route.node), ProxyEnd(self, self.route.node, source)
        near.other, far.other = far, near
        self.ends = [near, far]

    def update(self) -> None:
        """Apply the current faults."""
        for end in self.ends:
            before = end.fault
            end.fault = self.network.faults.on(end.source, end.target, self.route.channel)
            if end.fault.mode is Mode.CUT or (
                self.has_lost and before.mode is Mode.DROP and end.fault.mode is not Mode.DROP
            ):
                self.reset()
                return
        if not any(end.fault.blocks for end in self.ends):
            self.is_passable.set()
        for end in self.ends:
            end.pump()

    def look_if_node(self, end: ProxyEnd) -> None:
        """Check the node's listener first, because an immediate reconnect must be refused."""
        if end is self.ends[1]:
            self.network.look_at(self.route)

    def end_lost(self, end: ProxyEnd) -> None:
        self.look_if_node(end)
        if not self.is_half_open and not self.is_ended:
            self.reset()

    def half_open(self) -> None:
        """Close the node's end only."""
        self.is_half_open = True
        self.ends[1].reset()

    def close(self) -> None:
        """Close both ends after their last bytes, because both sides have ended the connection."""
        self.is_ended = True
        self.network.links.pop(self, None)
        for end in self.ends:
            if end.transport is not None:
                end.transport.close()

    def reset(self) -> None:
        self.network.links.pop(self, None)
        self.is_passable.set()
        for end in self.ends:
            end.reset()


@dataclass(slots=True)
class ProxyNetwork:
    """All routes, their connections and the faults."""

    routes: list[ProxyRoute]
    faults: LinkFaults = field(default_factory=LinkFaults)
    pids: dict[int, str] = field(default_factory=dict)
    links: dict[ProxyLink, None] = field(default_factory=dict)
    _servers: dict[ProxyRoute, asyncio.Server | None] = field(default_factory=dict)
    _tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    _owners: SocketOwners = field(default_factory=SocketOwners)

    def start(self) -> None:
        for route in self.routes:
            self._servers[route] = None
            self._start(self._open_when_target_is(route))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _open_when_target_is(self, route: ProxyRoute) -> None:
        while True:
            if _is_listening(route.target_port):
                break
            await asyncio.sleep(LOOK_SECONDS)
        if self._servers[route] is None:
            self._servers[route] = await asyncio.get_running_loop().create_server(
                lambda: NewConnection(self, route),
                HOST,
                route.port,
                reuse_address=True,
                backlog=128,
            )

    def look_at(self, route: ProxyRoute) -> None:
        """Close the proxy's listener if its target listener is closed."""
        server = self._servers[route]
        if server is not None and not _is_listening(route.target_port):
            server.close()
            self._servers[route] = None
            self._start(self._open_when_target_is(route))

    async def connect(self, visitor: NewConnection) -> None:
        """Identify the source of a connection, and connect it to the node, subject to faults."""
        link = ProxyLink(self, visitor.route)
        owner = self._owners.of(visitor.peer_port, visitor.route.port, self.pids)
        link.opened_by(CLIENTS if owner is None else self.pids[owner])
        link.update()
        if any(end.fault.mode is Mode.CUT for end in link.ends):
            visitor.reset()
            return
        self.links[link] = None
        near, far = link.ends
        visitor.hand_over(near)
        # A handshake needs both directions, so wait for them before connecting.
        await link.is_passable.wait()
        if link not in self.links:
            return
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: far, HOST, visitor.route.target_port
            )
        except OSError:
            self.look_at(visitor.route)
            link.reset()
            return
        near.pump()

    # Commands

    def obey(self, order: dict[str, object]) -> None:
        if order["do"] == "process":
            node = str(order["node"])
            self.pids = {pid: name for pid, name in self.pids.items() if name != node}
            self.pids[int(str(order["pid"]))] = node
        elif order["do"] == "fault":
            way = Direction(
                str(order["source"]), str(order["target"]), str(order.get("channel", ANY))
            )
            fault = LinkFault(
                mode=Mode(str(order.get("mode", Mode.CLEAR))),
                delay_ms=float(str(order.get("delay_ms", 0))),
                bytes_per_second=int(str(order.get("bytes_per_second", 0))),
            )
            self.faults.put(way, fault)
            self._update()
        elif order["do"] == "heal":
            self.faults.clear()
            self._update()
            for link in [link for link in self.links if link.is_half_open]:
                link.reset()
        elif order["do"] == "half-open":
            for link in list(self.links):
                if order["node"] in (link.route.node, ANY) and link.ends:
                    link.half_open()
        else:
            raise ValueError(f"unknown command {order}")

    def _update(self) -> None:
        for link in list(self.links):
            link.update()


class NewConnection(asyncio.Protocol):
    """An accepted connection whose source is not identified yet."""

    def __init__(self, network: ProxyNetwork, route: ProxyRoute) -> None:
        self.network, self.route = network, route
        self.peer_port = 0
        self._transport: asyncio.Transport | None = None
        self._end: ProxyEnd | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peer_port = self._transport.get_extra_info("peername")[1]
        self._transport.pause_reading()
        self.network._start(self.network.connect(self))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def hand_over(self, end: ProxyEnd) -> None:
        if self._transport is None:
            end.link.reset()
            return
        self._transport.set_protocol(end)
        end.connection_made(self._transport)
        self._transport.resume_reading()

    def reset(self) -> None:
        if self._transport is not None:
            raw = self._transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._transport.abort()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((HOST, port)) == 0


async def serve(routes: list[ProxyRoute]) -> None:
    """Execute the commands from standard input until it ends."""
    loop = asyncio.get_running_loop()
    network = ProxyNetwork(routes)
    network.start()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        network.obey(json.loads(line))
        sys.stdout.write("done\n")
        sys.stdout.flush()


def main() -> None:
    routes = [ProxyRoute(**row) for row in json.loads(sys.stdin.readline())]
    sys.stdout.write("done\n")
    sys.stdout.flush()
    asyncio.run(serve(routes))


if __name__ == "__main__":
    main()
