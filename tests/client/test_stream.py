"""Frames where they lie in the buffer: whole, byte by byte, larger than the buffer, and none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from riverrun.client.stream import BUFFER_BYTES_MIN, StreamConnection
from tests.server.fakes import FakeTransport


def run(story: Callable[[StreamConnection, FakeTransport], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        connection, transport = StreamConnection("there:1", "me", 0.05), FakeTransport()
        connection.connection_made(transport)
        await story(connection, transport)

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
def test_frames_arrive_whole_however_they_come(size: int, piece: int) -> None:
    if piece == 1 and size > 50_000:
        return  # slow, and nothing new

    async def story(connection: StreamConnection, _: FakeTransport) -> None:
        for number in range(3):
            body = bytes([number]) * size
            waiting = asyncio.ensure_future(connection.receive())
            await asyncio.sleep(0)
            give(connection, frame(body), piece)
            assert await waiting == body

    run(story)


def test_a_frame_in_use_is_not_touched_by_those_that_follow() -> None:
    async def story(connection: StreamConnection, _: FakeTransport) -> None:
        give(connection, frame(b"first") + frame(b"second"), 1000)
        first = await connection.receive()
        give(connection, frame(bytes(5 * BUFFER_BYTES_MIN)), 1000)
        assert first == b"first"
        assert await connection.receive() == b"second"
        assert len(await connection.receive()) == 5 * BUFFER_BYTES_MIN

    run(story)


def test_memory_is_given_back() -> None:
    async def story(connection: StreamConnection, _: FakeTransport) -> None:
        give(connection, frame(bytes(5 * BUFFER_BYTES_MIN)), 1 << 30)
        await connection.receive()
        assert len(connection.get_buffer(-1)) > BUFFER_BYTES_MIN
        connection.shrink()
        assert len(connection.get_buffer(-1)) == BUFFER_BYTES_MIN
        give(connection, frame(b"next"), 3)
        assert await connection.receive() == b"next"

    run(story)


@pytest.mark.parametrize("size", [-1, 0, 3, 1 << 30])
def test_a_length_that_cannot_be_ends_the_connection(size: int) -> None:
    async def story(connection: StreamConnection, transport: FakeTransport) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        give(connection, size.to_bytes(4, "big", signed=True), 4)
        with pytest.raises(ConnectionError):
            await waiting
        assert transport.was_aborted

    run(story)


def test_who_waits_is_told_when_the_connection_is_lost() -> None:
    async def story(connection: StreamConnection, _: FakeTransport) -> None:
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(0)
        connection.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await waiting
        with pytest.raises(ConnectionResetError):
            connection.send(b"more")
        with pytest.raises(ConnectionResetError):
            await connection.receive()

    run(story)


def test_silence_ends_the_connection() -> None:
    async def story(connection: StreamConnection, transport: FakeTransport) -> None:
        with pytest.raises(TimeoutError):
            await connection.receive()
        assert transport.was_aborted

    run(story)
