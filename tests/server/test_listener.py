"""Limits and timeouts of connections, and how a listener stops; partly on real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from riverrun.model.errors import ErrorCode
from riverrun.ports.clock import SystemClock
from riverrun.ports.metrics import Metrics
from riverrun.server.dispatch.router import Router
from riverrun.server.network.listener import Listener
from riverrun.server.network.settings import NetworkSettings
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse

from .fakes import Network, decode_frame, feed, frame, hot, module

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
FINE = HeartbeatResponse(error_code=ErrorCode.NONE)
HEARTBEATS = {ApiKey.HEARTBEAT: module(lambda *_: FINE)}
REFUSED = "riverrun_connections_refused_total"


def test_connections_are_limited_per_node_and_per_address() -> None:
    network = Network(connections_max=3, connections_per_ip_max=2)
    first, _ = network.connect("10.0.0.1")
    assert not network.connect("10.0.0.1")[1].is_closed
    assert network.connect("10.0.0.1")[1].is_closed
    assert not network.connect("10.0.0.2")[1].is_closed
    assert network.connect("10.0.0.3")[1].is_closed
    assert network.count(REFUSED, reason="max_connections_per_ip") == 1
    assert network.count(REFUSED, reason="max_connections") == 1
    first.connection_lost(None)
    assert not network.connect("10.0.0.1")[1].is_closed


def test_some_addresses_have_other_limits() -> None:
    network = Network(
        connections_per_ip_max=1, connections_per_ip_overrides="10.0.0.2:2, [fd00::1]:0"
    )
    assert not network.connect("10.0.0.2")[1].is_closed
    assert not network.connect("10.0.0.2")[1].is_closed
    assert network.connect("10.0.0.2")[1].is_closed
    assert network.connect("fd00::1")[1].is_closed
    assert not network.connect("10.0.0.1")[1].is_closed


def test_connections_that_come_too_fast_wait_for_their_turn() -> None:
    async def scenario() -> None:
        network = Network(HEARTBEATS, connection_rate_max=2)
        early = [network.connect() for _ in range(20)]
        assert all(transport.is_reading_now for _, transport in early)
        late = [network.connect() for _ in range(25)]
        assert [transport.is_closed for _, transport in late] == [False] * 21 + [True] * 4
        assert not late[5][1].is_reading_now
        assert network.count("riverrun_connections_delayed_total") == 20
        assert network.count(REFUSED, reason="max_connection_creation_rate") == 4
        for connection, _ in early + late:
            connection.connection_lost(None)

    asyncio.run(scenario())


def test_idle_connection_is_closed() -> None:
    network = Network(HEARTBEATS, idle_ms_max=10_000)
    (_, silent), (busy, busy_transport) = network.connect(), network.connect()
    for _ in range(6):
        network.sweep(2)
        feed(busy, frame(ApiKey.HEARTBEAT, 4, BEAT))
    assert silent.is_closed
    assert not busy_transport.is_closed
    assert network.count("riverrun_connections_closed_total", reason="idle") == 1


def test_connection_with_a_pending_request_is_not_idle() -> None:
    async def scenario() -> None:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        network = Network({ApiKey.HEARTBEAT: module(lambda *_: future)}, idle_ms_max=10_000)
        connection, transport = network.connect()
        feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT))
        network.sweep(30)
        network.sweep(30)
        assert not transport.is_closed

    asyncio.run(scenario())


def test_incomplete_frame_closes_its_connection() -> None:
    network = Network(HEARTBEATS, frame_ms_max=20_000, idle_ms_max=10**9)
    connection, transport = network.connect()
    whole = frame(ApiKey.HEARTBEAT, 4, BEAT)
    for byte in whole[:9]:
        feed(connection, bytes([byte]))
        network.sweep(2)
        assert not transport.is_closed
    network.sweep(2)
    network.sweep(2)
    assert transport.is_closed
    assert network.count(REFUSED, reason="slow_frame") == 1


def test_declared_lengths_of_many_connections_take_no_memory() -> None:
    network = Network(HEARTBEATS)
    for _ in range(200):
        connection, _ = network.connect()
        feed(connection, struct.pack(">i", 50_000_000) + bytes(50))
    assert network.buffer_bytes <= 200 * 16 * 1024
    network.sweep(2)
    assert network.buffer_bytes <= 200 * 16 * 1024


def test_closed_connection_with_unsent_responses_is_aborted() -> None:
    network = Network(HEARTBEATS)
    connection, transport = network.connect()
    feed(connection, struct.pack(">i", -1))
    network.sweep(2)
    assert not transport.was_aborted
    network.sweep(10)
    assert transport.was_aborted


def test_every_refusal_is_counted_and_one_a_second_is_logged() -> None:
    network = Network()
    with capture_logs() as logs:
        for _ in range(10):
            feed(network.connect()[0], struct.pack(">i", -5))
        network.clock.now += 1
        feed(network.connect()[0], struct.pack(">i", -5))
    assert network.count(REFUSED, reason="negative_length") == 11
    assert [entry.get("unlogged") for entry in logs] == [None, 9]
    assert logs[0]["client"] == "10.0.0.1"


Scenario = Callable[[], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Any], None]:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop

    def run_it(scenario: Any) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.wait_for(scenario, 20))

    return run_it


def real_listener(modules: Mapping[ApiKey, Any], **settings: Any) -> Listener:
    metrics, clock = Metrics(), SystemClock()
    router = Router(object(), metrics=metrics, clock=clock, modules=modules)
    return Listener(router, NetworkSettings(**settings), clock=clock, metrics=metrics)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


def test_real_clients_get_responses(run: Any) -> None:
    async def scenario() -> None:
        listener = real_listener(HEARTBEATS)
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(frame(ApiKey.HEARTBEAT, 4, BEAT, i) for i in range(1000)))
        for i in range(1000):
            assert decode_frame(ApiKey.HEARTBEAT, 4, await read_frame(reader)) == (i, FINE)
        writer.close()
        await listener.stop()

    run(scenario())


def test_clients_of_a_bound_socket_are_served_after_the_takeover(run: Any) -> None:
    async def scenario() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(ApiKey.HEARTBEAT, 4, BEAT, 7))
        await writer.drain()
        listener = real_listener(HEARTBEATS)
        assert await listener.start("PLAINTEXT", "127.0.0.1", port, bound) == port
        assert decode_frame(ApiKey.HEARTBEAT, 4, await read_frame(reader)) == (7, FINE)
        writer.close()
        await listener.stop()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    run(scenario())


def test_slow_reader_gets_large_responses_complete(run: Any) -> None:
    """Many megabytes both ways, and the reader starts late: no byte is lost or changed."""

    def double(_: Any, __: Any, buffer: memoryview, at: int) -> list[bytes]:
        return [bytes(buffer[at:])] * 2

    async def scenario() -> None:
        listener = real_listener({ApiKey.PRODUCE: hot(double)})
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [bytes([i]) * (300_000 + i) for i in range(20)]
        for i, body in enumerate(bodies):
            header = struct.pack(">hhih", ApiKey.PRODUCE, 3, i, -1)
            writer.write(struct.pack(">i", len(header) + len(body)) + header + body)
        for i, body in enumerate(bodies):
            assert await read_frame(reader) == struct.pack(">i", i) + body * 2
        writer.close()
        await listener.stop()
        assert listener.receive_memory.used_bytes == 0

    run(scenario())


def test_malformed_input_closes_only_its_own_connection(run: Any) -> None:
    async def scenario() -> None:
        listener = real_listener(HEARTBEATS)
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        good_reader, good = await asyncio.open_connection("127.0.0.1", port)
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">i", -1),
            struct.pack(">i", 2) + b"xx",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
            assert await reader.read() == b""
            writer.close()
            good.write(frame(ApiKey.HEARTBEAT, 4, BEAT, 5))
            assert decode_frame(ApiKey.HEARTBEAT, 4, await read_frame(good_reader)) == (5, FINE)
        good.close()
        await listener.stop()

    run(scenario())


def test_stop_completes_requests_in_flight_and_cancels_fetches(run: Any) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Any]] = []
        received = asyncio.Semaphore(0)

        def later(*_: Any) -> asyncio.Future[Any]:
            futures.append(loop.create_future())
            received.release()
            return futures[-1]

        listener = real_listener({ApiKey.PRODUCE: hot(later), ApiKey.FETCH: hot(later)})
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        streams = []
        for key in (ApiKey.PRODUCE, ApiKey.FETCH):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            header = struct.pack(">hhih", key, 4, 9, -1)
            writer.write(struct.pack(">i", len(header)) + header)
            await received.acquire()
            streams.append((reader, writer))
        stopping = asyncio.ensure_future(listener.stop())
        assert await streams[1][0].read() == b""
        assert futures[1].cancelled()
        assert not stopping.done()
        futures[0].set_result(b"kept")
        assert await read_frame(streams[0][0]) == struct.pack(">i", 9) + b"kept"
        assert await streams[0][0].read() == b""
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        for _, writer in streams:
            writer.close()

    run(scenario())


def test_stop_is_bounded_when_a_handler_hangs(run: Any) -> None:
    async def scenario() -> None:
        received = asyncio.Event()

        async def never(*_: Any) -> None:
            received.set()
            await asyncio.Event().wait()

        listener = real_listener({ApiKey.HEARTBEAT: module(never)}, stop_ms_max=50)
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(ApiKey.HEARTBEAT, 4, BEAT))
        await received.wait()
        await listener.stop()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        assert not listener.pending
        writer.close()

    run(scenario())


def test_sockets_disable_nagle(run: Any) -> None:
    async def scenario() -> None:
        seen = []
        listener = real_listener(HEARTBEATS, send_buffer_bytes=50_000)
        tune = listener.tune

        def look(raw: socket.socket) -> None:
            tune(raw)
            seen.append(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            seen.append(raw.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 50_000)

        listener.tune = look  # type: ignore[method-assign]
        port = await listener.start("PLAINTEXT", "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(ApiKey.HEARTBEAT, 4, BEAT))
        await read_frame(reader)
        assert [bool(value) for value in seen] == [True, True]
        writer.close()
        await listener.stop()

    run(scenario())
