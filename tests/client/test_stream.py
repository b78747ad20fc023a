"""Frames in the receive buffer: whole, byte by byte, larger than the buffer, and invalid."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from riverrun.client.stream import BUFFER_BYTES_MIN, StreamConnection
from tests.server.fakes import FakeTransport


def run(scenario: Callable[[StreamConnection, FakeTransport], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        connection, transport = StreamConnection("there:1", "me", 0.05), FakeTransport()
        connection.connection_made(transport)
        await scenario(connection, transport)

    asyncio.run(whole())


def give(connection: StreamConnection, data: bytes, piece: int) -> None:
    for at in range(0, len(data), piece):
        left = data[at : at + piece]
        while left:
            room = connection.get_buffer(-1)
            count = min(len(room), len(left))
            room[:count] = left[:count]
            connection.buffer_updated(count)
            left = left[count:]


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("piece", [1, 3, 100, 10_000, 1 << 30])
@pytest.mark.parametrize("size", [4, 5, 50_000, 3 * BUFFER_BYTES_MIN])
def test_frames_are_complete_however_they_arrive(size: int, piece: int) -> None:
    if piece == 1 and size > 50_000:
        return  # Slow, and covered by the smaller sizes.

    async def scenario(connection: StreamConnection, _: FakeTransport) -> None:
        for number in range(3):
            body = bytes([number]) * size
            waiting = asyncio.ensure_future(connection.receive())
            await asyncio.sleep(0)
            give(connection, frame(body), piece)
            assert await waiting == body

    run(scenario)


def test_frame_in_use_is_not_overwritten() -> None:
    async def scenario(connection: StreamConnection, _: FakeTransport) -> None:
        give(connection, frame(b"first") + frame(b"second"), 1000)
        first = await connection.receive()
        give(connection, frame(bytes(5 * BUFFER_BYTES_MIN)), 1000)
        assert bytes(first) == b"first"
        assert bytes(await connection.receive()) == b"second"
        assert len(await connection.receive()) == 5 * BUFFER_BYTES_MIN

    run(scenario)


def test_buffer_shrinks() -> None:
    async def scenario(connection: StreamConnection, _: FakeTransport) -> None:
        give(connection, frame(bytes(5 * BUFFER_BYTES_MIN)), 1 << 30)
        await connection.receive()
        assert len(connection.get_buffer(-1)) > BUFFER_BYTES_MIN
        connection.shrink()
        assert len(connection.get_buffer(-1)) == BUFFER_BYTES_MIN
        give(connection, frame(b"next"), 3)
        assert bytes(await connection.receive()) == b"next"

    run(scenario)


@pytest.mark.parametrize("size", [-1, 0, 3, 1 << 30])
def test_invalid_length_aborts_the_connection(size: int) -> None:
    async def scenario(connection: StreamConnection, transport: FakeTransport) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        give(connection, size.to_bytes(4, "big", signed=True), 4)
        with pytest.raises(ConnectionError):
            await waiting
        assert transport.was_aborted

    run(scenario)


def test_receive_fails_when_the_connection_is_lost() -> None:
    async def scenario(connection: StreamConnection, _: FakeTransport) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        connection.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            connection.send(b"more")
        with pytest.raises(ConnectionResetError):
            await connection.receive()

    run(scenario)


def test_receive_timeout_aborts_the_connection() -> None:
    async def scenario(connection: StreamConnection, transport: FakeTransport) -> None:
        with pytest.raises(TimeoutError):
            await connection.receive()
        assert transport.was_aborted

    run(scenario)
