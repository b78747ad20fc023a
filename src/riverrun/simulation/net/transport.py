"""asyncio transports with backpressure, and servers, on simulated streams."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from riverrun.simulation.loop import NodeLoop
    from riverrun.simulation.net.network import SimulatedNetwork
    from riverrun.simulation.net.stream import Stream

WRITE_HIGH_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
Address = tuple[str, int]


class NodeTransport(asyncio.Transport):
    """One end of a connection."""

    outgoing: Stream
    incoming: Stream

    def __init__(self, loop: NodeLoop, protocol: Any, local: Address, remote: Address) -> None:
        super().__init__(
            {"sockname": local, "peername": remote, "socket": NodeSocket(local, remote)}
        )
        self.loop = loop
        self.host = loop.host
        self.is_gone = False
        self._protocol: Any = protocol
        self._is_closing = False
        self._is_reading = True
        self._is_open = False
        self._is_writing_paused = False
        self._has_finished = False
        self._inbox: deque[bytes] = deque()
        self._has_inbox_ending = False
        self._is_read_planned = False
        self._high, self._low = WRITE_HIGH_BYTES, WRITE_HIGH_BYTES // 4

    def open(self, waiter: asyncio.Future[None] | None = None) -> None:
        self.loop.call_soon(self._opened, waiter)

    def _opened(self, waiter: asyncio.Future[None] | None) -> None:
        if not self.is_gone:
            self._is_open = True
            self._protocol.connection_made(self)
            self._plan_read()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Receiving

    @property
    def has_unread(self) -> bool:
        return bool(self._inbox)

    def receive(self, data: bytes) -> None:
        self._inbox.append(data)
        self._plan_read()

    def ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.lose(error)
        else:
            self._has_inbox_ending = True
            self._plan_read()

    def _plan_read(self) -> None:
        has_input = bool(self._inbox) or self._has_inbox_ending
        if has_input and self._is_open and self._is_reading and not self._is_read_planned:
            self._is_read_planned = True
            self.loop.arrive(self._read)

    def _read(self) -> None:
        """Read the socket once; the next read is a new event, as with epoll."""
        self._is_read_planned = False
        if not self._is_reading or self._is_closing or self.is_gone:
            return
        if not self._inbox:
            if self._has_inbox_ending:
                self._has_inbox_ending = False
                if not self._protocol.eof_received():
                    self.close()
            return
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                count = self._read_into_buffer(self._protocol)
            else:
                data = self._take(READ_BYTES_MAX)
                count = len(data)
                self._protocol.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - like asyncio: the connection is aborted
            self.loop.call_exception_handler(
                {"message": "a protocol failed", "exception": error, "transport": self}
            )
            self.abort()
            return
        self.incoming.consumed(count)
        self._plan_read()

    def _read_into_buffer(self, protocol: asyncio.BufferedProtocol) -> int:
        buffer = memoryview(protocol.get_buffer(-1)).cast("B")
        assert len(buffer) > 0, "get_buffer() returned an empty buffer"
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        del buffer
        protocol.buffer_updated(len(data))
        return len(data)

    def _take(self, limit: int) -> bytes:
        """Take up to ``limit`` received bytes."""
        data = self._inbox.popleft()
        while self._inbox and len(data) + len(self._inbox[0]) <= limit:
            data += self._inbox.popleft()
        if len(data) > limit:
            self._inbox.appendleft(data[limit:])
            data = data[:limit]
        return data

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._plan_read()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing and not self.is_gone

    # Sending

    def write(self, data: Any) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._is_closing or self.is_gone or not len(data):
            return
        self.outgoing.send(data)
        if self.outgoing.unsent_bytes > self._high and not self._is_writing_paused:
            self._is_writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def sent(self) -> None:
        """React to progress of the outgoing stream."""
        if self.is_gone:
            return
        if self._is_writing_paused and self.outgoing.unsent_bytes <= self._low:
            self._is_writing_paused = False
            self.loop.arrive(self._resume_writing)
        if self._is_closing and self.outgoing.unsent_bytes == 0:
            self._finish_closing()

    def _resume_writing(self) -> None:
        if not self.is_gone and not self._is_writing_paused:
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_HIGH_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self.outgoing.unsent_bytes

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.outgoing.end(None)

    # Ending

    def close(self) -> None:
        if not self._is_closing and not self.is_gone:
            self._is_closing = True
            if self.outgoing.unsent_bytes == 0:
                self._finish_closing()

    def _finish_closing(self) -> None:
        if self._has_finished:
            return
        self._has_finished = True
        # Closing a socket with unread input sends a reset.
        error = ConnectionResetError(errno.ECONNRESET, "connection reset by peer")
        self.outgoing.end(error if self.has_unread else None)
        self.loop.call_soon(self._lost, None)

    def abort(self) -> None:
        if not self.is_gone:
            self._is_closing = True
            self.outgoing.drop_unsent()
            self.outgoing.end(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
            self.loop.call_soon(self._lost, None)

    def lose(self, error: BaseException) -> None:
        """Break the connection after a reset or a timeout."""
        if not self.is_gone:
            self.outgoing.drop_unsent()
            self.loop.arrive(self._lost, error)

    def _lost(self, error: BaseException | None) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._is_closing = True
            self._inbox.clear()
            if error is not None:
                self.outgoing.abandon()
            if self._is_open:
                self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._is_closing or self.is_gone

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol


class NodeSocket:
    """The socket of a transport; options are accepted and ignored."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, local: Address, remote: Address | None) -> None:
        self._local = local
        self._remote = remote

    def getsockname(self) -> Address:
        return self._local

    def getpeername(self) -> Address:
        if self._remote is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self._remote

    def setsockopt(self, *_: object) -> None: ...

    def getsockopt(self, *_: object) -> int:
        return 0

    def fileno(self) -> int:
        return -1


class NodeServer(asyncio.AbstractServer):
    """A listener."""

    def __init__(
        self,
        network: SimulatedNetwork,
        loop: NodeLoop,
        port: int,
        protocol_factory: Callable[[], Any],
    ) -> None:
        self._network = network
        self._protocol_factory = protocol_factory
        self._is_serving = True
        self.loop = loop
        self.port = port
        self.sockets = (NodeSocket((loop.host.address, port), None),)

    def accept(self, transport: NodeTransport) -> None:
        """Accept in the kernel; the process sees the connection in its next iteration."""
        if self.loop.is_halted:
            transport.is_gone = True
            transport.outgoing.source_died(announce=True)
        else:
            self.loop.arrive(self._accepted, transport)

    def _accepted(self, transport: NodeTransport) -> None:
        if not self._is_serving:
            transport.abort()
            return
        transport.set_protocol(self._protocol_factory())
        transport._opened(None)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def close(self) -> None:
        self._is_serving = False
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        return

    async def start_serving(self) -> None:
        return

    def is_serving(self) -> bool:
        return self._is_serving

    async def serve_forever(self) -> None:
        await self.loop.create_future()

    async def __aenter__(self) -> NodeServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
