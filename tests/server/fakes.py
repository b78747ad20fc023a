"""A transport, a clock and request modules for tests of the network, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from riverrun.ports.metrics import Metrics
from riverrun.server.dispatch.router import Router
from riverrun.server.network.connection import ClientConnection
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.wire import codec
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.headers import (
    has_flexible_response_header,
    read_response_header,
    request_frame,
)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class FakeTransport(asyncio.Transport):
    """Keeps the written buffers without a copy, as uvloop does."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__({"peername": (host, 4711)})
        self.buffers: list[Any] = []
        self.is_reading_now = True
        self.is_closed = False
        self.was_aborted = False
        self.writes = 0

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.writes += 1
        self.buffers.append(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        assert not self.is_closed
        self.writes += 1
        self.buffers.extend(list_of_data)

    def pause_reading(self) -> None:
        assert self.is_reading_now
        self.is_reading_now = False

    def resume_reading(self) -> None:
        assert not self.is_reading_now
        self.is_reading_now = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.was_aborted = True

    def get_write_buffer_size(self) -> int:
        return sum(len(buffer) for buffer in self.buffers)

    def frames(self) -> list[bytes]:
        """The frames that were written so far."""
        data = b"".join(bytes(buffer) for buffer in self.buffers)
        found = []
        while data:
            size = int.from_bytes(data[:4], "big")
            assert len(data) >= 4 + size
            found.append(data[4 : 4 + size])
            data = data[4 + size :]
        return found


class FakeListener(Listener):
    """Runs scheduled callbacks when ``run_callbacks`` is called."""

    callbacks: list[Callable[[], None]]

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def run_callbacks(self) -> None:
        while self.callbacks:
            self.callbacks.pop(0)()


class Network:
    """A listener with fake request modules, and connections without sockets."""

    def __init__(self, modules: Mapping[ApiKey, Any] | None = None, **settings: Any) -> None:
        self.clock = FakeClock()
        self.metrics = Metrics()
        self.bugs: list[BaseException] = []
        self.router = Router(
            SimpleNamespace(),
            metrics=self.metrics,
            clock=self.clock,
            modules=modules or {},
            on_bug=self.bugs.append,
        )
        self.listener = FakeListener(
            self.router,
            NetworkSettings(**settings),
            clock=self.clock,
            metrics=self.metrics,
        )
        self.listener.callbacks = []

    def connect(self, host: str = "10.0.0.1") -> tuple[ClientConnection, FakeTransport]:
        connection = self.listener._connect("PLAINTEXT")
        transport = FakeTransport(host)
        connection.connection_made(transport)
        return connection, transport

    @property
    def buffer_bytes(self) -> int:
        return self.listener.receive_memory.used_bytes

    def sweep(self, seconds: float) -> None:
        """Advance the clock and check every connection, as the timer does."""
        self.clock.now += seconds
        for key, connection in list(self.listener._connections.items()):
            self.listener._check(connection, self.listener._activity[key], self.clock.now)

    def count(self, name: str, **labels: str) -> int:
        family = self.metrics.families.get(name)
        counters = family.counters if family else {}
        counter = counters.get(tuple(sorted(labels.items())))
        return counter.value if counter else 0


def feed(
    connection: ClientConnection,
    data: bytes,
    step: int | None = None,
    *,
    runs_callbacks: bool = True,
) -> bytes:
    """Deliver bytes as a transport does, at most ``step`` at a time; returns the rest."""
    transport, listener = connection._transport, connection._listener
    assert isinstance(transport, FakeTransport)
    assert isinstance(listener, FakeListener)
    while data and transport.is_reading_now:
        view = connection.get_buffer(-1)
        assert len(view) > 0
        count = min(len(view), len(data), step or len(data))
        view[:count] = data[:count]
        data = data[count:]
        connection.buffer_updated(count)
        if runs_callbacks:
            listener.run_callbacks()
    return data


def frame(key: ApiKey, version: int, message: Any, correlation_id: int = 1) -> bytes:
    body = codec.encode_request(key, version, message)
    return request_frame(ALL_APIS[key], version, correlation_id, "tester", body)


def decode_frame(key: ApiKey, version: int, response: bytes) -> tuple[int, Any]:
    """The correlation id and the message of a frame without its length."""
    is_flexible = has_flexible_response_header(ALL_APIS[key], version)
    correlation_id, at = read_response_header(response, is_flexible=is_flexible)
    return correlation_id, codec.decode_response(key, version, response, at)


def module(handle: Callable[..., Any], **more: Any) -> Any:
    return SimpleNamespace(handle=handle, **more)


def hot(handle_frame: Callable[..., Any]) -> Any:
    return SimpleNamespace(handle_frame=handle_frame)
