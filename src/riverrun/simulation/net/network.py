"""The network between machines, with delays, partitions, slow links and resets.

As with TCP, a connection neither loses nor reorders bytes. A partition delays bytes until it heals
or the connection times out. Only resets, timeouts and stopped machines end a connection.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from riverrun.simulation.net.stream import Stream
from riverrun.simulation.net.transport import NodeServer, NodeTransport

if TYPE_CHECKING:
    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.world import Host, World

EPHEMERAL_PORT = 40_000
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(slots=True, kw_only=True)
class Conditions:
    """Parameters of the network, in seconds and bytes."""

    latency_min: float = 0.1e-3
    latency_mean: float = 0.4e-3
    bytes_per_second: float = 200e6
    split_probability: float = 0.15
    window_bytes: int = 128 * 1024
    syn_retry: float = 1.0
    connect_timeout: float = 30.0
    give_up_after: float = 20.0
    retransmit: float = 0.2


class NetworkPartition:
    """Links that are blocked until ``heal`` is called."""

    def __init__(self, network: SimulatedNetwork, links: list[tuple[str, str]]) -> None:
        self._network = network
        self._links = links

    def heal(self) -> None:
        links, self._links = self._links, []
        self._network.restore(links)


class SimulatedNetwork:
    def __init__(self, world: World) -> None:
        self.world = world
        self.conditions = Conditions()
        self.rng = world.stream("network")
        self.slowness: dict[tuple[str, str], float] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._servers: dict[tuple[str, int], NodeServer] = {}
        self._streams: dict[Stream, None] = {}
        self._ports = EPHEMERAL_PORT

    # Faults

    def partition(
        self, left: Iterable[str], right: Iterable[str], *, one_way: bool = False
    ) -> NetworkPartition:
        """Block traffic from left to right, and back unless ``one_way``, until it is healed."""
        right = list(right)
        links = [(a, b) for a in left for b in right if a != b]
        if not one_way:
            links += [(b, a) for a, b in links]
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1
        arrow = "-x->" if one_way else "<-x->"
        self.world.trace(f"network: {links[0][0]} {arrow} {links[0][1]} ({len(links)} links cut)")
        return NetworkPartition(self, links)

    def restore(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self._cuts[link] -= 1
        self.world.trace(f"network: {len(links)} links restored")
        for stream in list(self._streams):
            stream.unstall()

    def slow_down(self, left: str, right: str, factor: float) -> None:
        """Multiply delays between two machines by a factor; 1 is normal."""
        self.world.trace(f"network: {left} <-> {right} is {factor:g} times as slow")
        self.slowness[left, right] = self.slowness[right, left] = factor

    def reset_connections(self, left: str, right: str) -> None:
        """Reset every connection between two machines, as a middlebox that lost its state does."""
        self.world.trace(f"network: connections of {left} and {right} reset")
        for stream in list(self._streams):
            if {stream.source.host.name, stream.target.host.name} == {left, right}:
                stream.source.lose(ConnectionResetError(errno.ECONNRESET, "reset on the way"))

    # Events of machines

    def process_stopped(self, process: NodeLoop, *, announce: bool) -> None:
        """Close the connections of a process; without ``announce`` (power loss), send nothing."""
        for key in [key for key, server in self._servers.items() if server.loop is process]:
            del self._servers[key]
        for stream in list(self._streams):
            if stream.source.loop is process:
                stream.source_died(announce=announce)

    def powered_on(self, host: str) -> None:
        """Reset connections that were open to the machine before its power loss."""
        for stream in list(self._streams):
            if stream.target.host.name == host:
                stream.unstall()

    # Conditions

    def passes(self, source: str, target: str) -> bool:
        return not self._cuts.get((source, target), 0) and self.world.hosts[target].is_powered

    def delay(self, source: str, target: str, size: int = 0) -> float:
        now = self.conditions
        seconds = now.latency_min + self.rng.expovariate(1 / now.latency_mean)
        if source == target:
            seconds *= 0.1
        seconds += size / now.bytes_per_second
        return seconds * self.slowness.get((source, target), 1.0)

    def piece(self, size: int) -> int:
        """How many of ``size`` bytes arrive together; TCP keeps no message boundaries."""
        if size > 1 and self.rng.random() < self.conditions.split_probability:
            return self.rng.randrange(1, size)
        return size

    # Connections

    def resolve(self, asking: Host, name: str) -> str:
        """The address of a name."""
        if name in LOOPBACK:
            return asking.address
        if name in self.world.hosts:
            return self.world.hosts[name].address
        if any(host.address == name for host in self.world.hosts.values()):
            return name
        raise socket.gaierror(socket.EAI_NONAME, f"unknown host {name}")

    def _host(self, asking: Host, name: str) -> Host:
        address = self.resolve(asking, name)
        return next(host for host in self.world.hosts.values() if host.address == address)

    def listen(
        self, loop: NodeLoop, protocol_factory: Callable[[], Any], host: Any, port: int | None
    ) -> NodeServer:
        if not port:
            port = self.next_port()
        key = (loop.host.name, port)
        if key in self._servers:
            raise OSError(errno.EADDRINUSE, f"address already in use: {key}")
        self._servers[key] = server = NodeServer(self, loop, port, protocol_factory)
        self.world.record(f"listen {key}")
        return server

    def unlisten(self, server: NodeServer) -> None:
        key = (server.loop.host.name, server.port)
        if self._servers.get(key) is server:
            del self._servers[key]

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    async def connect(
        self, loop: NodeLoop, protocol_factory: Callable[[], Any], host: Any, port: Any
    ) -> tuple[NodeTransport, Any]:
        here, there = loop.host, self._host(loop.host, host)
        server = await self._shake_hands(here.name, there.name, int(port))
        local = (here.address, self.next_port())
        remote = (there.address, int(port))
        client = NodeTransport(loop, protocol_factory(), local, remote)
        accepted = NodeTransport(server.loop, None, remote, local)
        for source, target in ((client, accepted), (accepted, client)):
            source.outgoing = Stream(self, source, target)
            target.incoming = source.outgoing
            self._streams[source.outgoing] = None
        self.world.record(f"connect {here.name} {there.name}:{port}")
        server.accept(accepted)
        waiter = loop.create_future()
        client.open(waiter)
        await waiter
        return client, client.get_protocol()

    async def _shake_hands(self, here: str, there: str, port: int) -> NodeServer:
        """Find the listener when the first packet arrives; lost packets are retransmitted."""
        waited, retry = 0.0, self.conditions.syn_retry
        while True:
            await asyncio.sleep(self.delay(here, there))
            if self.passes(here, there):
                server = self._servers.get((there, port))
                await asyncio.sleep(self.delay(there, here))
                if self.passes(there, here):
                    if server is None:
                        raise ConnectionRefusedError(
                            errno.ECONNREFUSED, f"nothing listens on {there}:{port}"
                        )
                    return server
            if waited >= self.conditions.connect_timeout:
                raise TimeoutError(errno.ETIMEDOUT, f"no response from {there}:{port}")
            await asyncio.sleep(retry)
            waited += retry
            retry *= 2

    def remove(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
