"""An event loop whose connections to chosen ports are silent, as in a network partition.

Every connection between two nodes was opened by one of them. It is enough that this node neither
sends nor receives on its own connections, if the loops of the other nodes do the same.

A connection that lost bytes is aborted when the partition ends, because TCP would otherwise have
sent them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

import uvloop


class PartitionedLoop(uvloop.Loop):
    """uvloop with unreachable ports."""

    def __init__(self) -> None:
        super().__init__()
        self._unreachable: frozenset[int] = frozenset()
        self._has_changed = asyncio.Event()
        self._links: dict[PartitionedTransport, None] = {}

    def set_unreachable(self, ports: Iterable[int]) -> None:
        """Replace the unreachable ports. Takes effect on existing connections too."""
        self._unreachable = frozenset(ports)
        self._has_changed.set()
        self._has_changed = asyncio.Event()
        for link in list(self._links):
            link.set_silent(link.port in self._unreachable)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **options: Any,
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Without a response the caller waits until its own timeout, as for a lost SYN."""
        while port in self._unreachable:
            await self._has_changed.wait()
        _, made = await super().create_connection(
            lambda: PartitionedProtocol(protocol_factory(), self, port), host, port, **options
        )
        assert made.transport is not None, "a connection has a transport"
        return made.transport, made.inner

    def add_link(self, link: PartitionedTransport) -> None:
        self._links[link] = None
        link.set_silent(link.port in self._unreachable)

    def remove_link(self, link: PartitionedTransport) -> None:
        self._links.pop(link, None)


class PartitionedProtocol(asyncio.BaseProtocol):
    """Gives its protocol a ``PartitionedTransport``. Everything else goes to the protocol itself:
    uvloop looks up whether it has the methods of ``Protocol`` or of ``BufferedProtocol``.
    """

    def __init__(self, inner: asyncio.BaseProtocol, loop: PartitionedLoop, port: int) -> None:
        self.inner = inner
        self.transport: Any = None
        self._loop = loop
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = PartitionedTransport(cast(asyncio.Transport, transport), self._port)
        self._loop.add_link(self.transport)
        self.inner.connection_made(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._loop.remove_link(self.transport)
        self.inner.connection_lost(error)

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class PartitionedTransport:
    """A transport that neither reads nor writes while it is silent."""

    def __init__(self, inner: asyncio.Transport, port: int) -> None:
        self.port = port
        self._inner = inner
        self._is_silent = False
        self._has_lost = False

    def set_silent(self, is_silent: bool) -> None:
        if is_silent == self._is_silent or self._inner.is_closing():
            return
        self._is_silent = is_silent
        if is_silent:
            self._inner.pause_reading()
        elif self._has_lost:
            self._inner.abort()
        else:
            self._inner.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_silent:
            self._has_lost = True
        else:
            self._inner.write(data)

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._is_silent:
            self._has_lost = True
        else:
            self._inner.writelines(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
