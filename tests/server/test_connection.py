"""Framing, order, back pressure and memory of one connection, on a fake transport."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode
from riverrun.model.settings import MiB
from riverrun.server.network.connection import (
    BUFFER_BYTES_MIN,
    FRAMES_PER_ITERATION,
    READ_AHEAD_BYTES_MAX,
)
from riverrun.server.network.memory import RESPONSE_BYTES_MIN, SendMemory
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.list_groups_request import ListGroupsRequest

from .fakes import Network, decode_frame, feed, frame, hot, module

BEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
FINE = HeartbeatResponse(error_code=ErrorCode.NONE)
HEARTBEATS = {ApiKey.HEARTBEAT: module(lambda *_: FINE)}


def echo(_: Any, __: Any, buffer: memoryview, at: int) -> bytes:
    return bytes(buffer[at:])


ECHO = {ApiKey.PRODUCE: hot(echo), ApiKey.FETCH: hot(echo)}


def raw(key: int, body: bytes, correlation_id: int = 1, version: int = 4) -> bytes:
    header = struct.pack(">hhih", key, version, correlation_id, -1)
    return struct.pack(">i", len(header + body)) + header + body


def correlations(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(data[:4], "big") for data in frames]


def test_responses_to_one_read_leave_in_one_write() -> None:
    connection, transport = Network(HEARTBEATS).connect()
    feed(connection, b"".join(frame(ApiKey.HEARTBEAT, 4, BEAT, i) for i in range(50)))
    assert correlations(transport.frames()) == list(range(50))
    assert decode_frame(ApiKey.HEARTBEAT, 4, transport.frames()[49]) == (49, FINE)
    assert transport.writes == 1


def test_busy_connection_yields_to_the_event_loop() -> None:
    network = Network(HEARTBEATS)
    connection, transport = network.connect()
    data = frame(ApiKey.HEARTBEAT, 4, BEAT) * (2 * FRAMES_PER_ITERATION + 10)
    assert not feed(connection, data[: len(data) // 2], runs_callbacks=False)
    assert len(transport.frames()) == FRAMES_PER_ITERATION
    assert not transport.is_reading_now
    network.listener.run_callbacks()
    assert transport.is_reading_now
    assert not feed(connection, data[len(data) // 2 :])
    assert len(transport.frames()) == 2 * FRAMES_PER_ITERATION + 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 70_000), min_size=1, max_size=6),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=6),
)
def test_frames_are_found_at_any_fragmentation(sizes: list[int], cuts: list[int]) -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    bodies = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(raw(ApiKey.PRODUCE, body, i) for i, body in enumerate(bodies))
    for cut in cuts:
        feed(connection, data[:cut])
        data = data[cut:]
    feed(connection, data)
    assert [response[4:] for response in transport.frames()] == bodies
    assert correlations(transport.frames()) == list(range(len(sizes)))
    assert transport.is_reading_now
    connection.connection_lost(None)
    assert network.buffer_bytes == 0


def test_frame_may_arrive_byte_by_byte() -> None:
    connection, transport = Network(ECHO).connect()
    feed(connection, raw(ApiKey.FETCH, b"slow") * 3, step=1)
    assert [data[4:] for data in transport.frames()] == [b"slow"] * 3


def test_written_responses_do_not_share_the_receive_buffer() -> None:
    """uvloop keeps the views that it writes, so handlers must copy from the receive buffer."""
    connection, transport = Network(ECHO).connect()
    feed(connection, raw(ApiKey.FETCH, b"a" * 9000))
    feed(connection, raw(ApiKey.FETCH, b"b" * 9000))
    assert [data[4:5] for data in transport.frames()] == [b"a", b"b"]


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 1001])
def test_invalid_length_closes_the_connection(size: int) -> None:
    network = Network(HEARTBEATS, request_bytes_max=1000)
    connection, transport = network.connect()
    feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT) + struct.pack(">i", size))
    assert transport.is_closed
    assert len(transport.frames()) == 1, "the request before it has a response"
    kind = "negative_length" if size < 0 else "oversized"
    assert network.count("riverrun_connections_refused_total", reason=kind) == 1
    assert network.buffer_bytes == BUFFER_BYTES_MIN


def test_bytes_after_the_close_are_ignored() -> None:
    connection, transport = Network(HEARTBEATS).connect()
    feed(connection, struct.pack(">i", -1))
    feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT) * 3)
    assert transport.is_closed
    assert not transport.frames()


def test_declared_length_takes_no_memory() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    feed(connection, struct.pack(">i", 90_000_000) + bytes(100))
    assert network.buffer_bytes == BUFFER_BYTES_MIN
    feed(connection, bytes(1_000_000))
    assert 1_000_000 < network.buffer_bytes <= 2 * 1_000_104 + BUFFER_BYTES_MIN
    assert not transport.is_closed


def test_idle_connection_releases_its_buffer() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    feed(connection, raw(ApiKey.FETCH, bytes(3_000_000)))
    assert network.buffer_bytes >= 3_000_000
    network.sweep(2)
    assert network.buffer_bytes >= 3_000_000, "it was active since the last sweep"
    network.sweep(2)
    assert network.buffer_bytes == 0
    feed(connection, raw(ApiKey.FETCH, b"again"))
    assert transport.frames()[-1][4:] == b"again"


def test_full_buffer_grows_to_take_many_small_frames() -> None:
    network = Network(HEARTBEATS)
    connection, _ = network.connect()
    data = frame(ApiKey.HEARTBEAT, 4, BEAT)
    feed(connection, data * 30_000)
    assert BUFFER_BYTES_MIN < network.buffer_bytes <= READ_AHEAD_BYTES_MAX


def test_retained_buffers_are_limited() -> None:
    network = Network(ECHO, retained_bytes_max=5_000_000)
    connections = [network.connect()[0] for _ in range(4)]
    for connection in connections:
        feed(connection, raw(ApiKey.FETCH, bytes(2_000_000)))
    assert 2_000_000 <= network.buffer_bytes <= 5_000_000


class PendingHandler:
    """Handlers whose responses the test sets."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []

    def handle(self, *_: Any) -> asyncio.Future[Any]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_responses_leave_in_the_order_of_the_requests() -> None:
    async def scenario() -> None:
        later = PendingHandler()
        connection, transport = Network({ApiKey.PRODUCE: hot(later.handle)}).connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(4)))
        first, second, third, fourth = later.futures
        third.set_result(b"3")
        second.set_result(None)  # acks=0
        await settle()
        assert transport.frames() == []
        first.set_result([b"1", b"!"])
        await settle()
        assert [data[4:] for data in transport.frames()] == [b"1!", b"3"]
        fourth.set_result(b"4")
        await settle()
        assert correlations(transport.frames()) == [0, 2, 3]

    asyncio.run(scenario())


def test_ready_response_waits_for_earlier_ones() -> None:
    async def scenario() -> None:
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        results: list[Any] = [waiting, b"2", None, b"4"]
        network = Network({ApiKey.PRODUCE: hot(lambda *_: results.pop(0))})
        connection, transport = network.connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(4)))
        assert not transport.frames()
        waiting.set_result(b"1")
        await settle()
        assert [data[4:] for data in transport.frames()] == [b"1", b"2", b"4"]

    asyncio.run(scenario())


def test_requests_other_than_produce_are_handled_one_by_one() -> None:
    async def scenario() -> None:
        later, seen = PendingHandler(), []

        def groups(*_: Any) -> bytes:
            seen.append("groups")
            return b""

        modules = {ApiKey.HEARTBEAT: module(later.handle), ApiKey.LIST_GROUPS: module(groups)}
        modules[ApiKey.PRODUCE] = hot(later.handle)
        connection, transport = Network(modules).connect()
        beat = frame(ApiKey.HEARTBEAT, 4, BEAT, 1)
        listing = frame(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), 2)
        feed(connection, beat + beat + listing + raw(ApiKey.PRODUCE, b"", 3) + listing)
        assert len(later.futures) == 1
        assert not transport.is_reading_now
        later.futures[0].set_result(FINE)
        await settle()
        assert (len(later.futures), seen) == (2, [])
        later.futures[1].set_result(FINE)
        await settle()
        assert (len(later.futures), seen) == (3, ["groups"])
        assert not transport.is_reading_now
        later.futures[2].set_result(b"")
        await settle()
        assert seen == ["groups", "groups"]
        assert transport.is_reading_now
        assert correlations(transport.frames()) == [1, 1, 2, 3, 2]

    asyncio.run(scenario())


def test_requests_in_flight_are_limited() -> None:
    async def scenario() -> None:
        later = PendingHandler()
        network = Network({ApiKey.PRODUCE: hot(later.handle)}, in_flight_max=3)
        connection, transport = network.connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(5)))
        assert len(later.futures) == 3
        assert not transport.is_reading_now
        for number in range(5):
            later.futures[number].set_result(b"")
            await settle()
        assert correlations(transport.frames()) == list(range(5))
        assert transport.is_reading_now
        assert not network.listener.pending

    asyncio.run(scenario())


def test_client_that_does_not_read_responses_is_not_read_from() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    connection.pause_writing()
    feed(connection, raw(ApiKey.FETCH, b"x") * 2)
    assert not transport.frames()
    assert not transport.is_reading_now
    connection.resume_writing()
    assert len(transport.frames()) == 2
    assert transport.is_reading_now


def test_unsent_responses_limit_the_next_response() -> None:
    network = Network({ApiKey.FETCH: hot(lambda *_: [bytes(8 * MiB)])}, unsent_bytes_max=64 * MiB)
    memory = network.listener.send_memory
    assert memory.response_bytes_max() == 16 * MiB
    slow, _ = network.connect()
    gone, _ = network.connect()
    for connection in (slow, gone):
        feed(connection, raw(ApiKey.FETCH, b"x"))
        connection.pause_writing()
    assert 16 * MiB < memory.unsent_bytes < 17 * MiB
    assert memory.response_bytes_max() < 12 * MiB
    gone.connection_lost(None)
    slow.resume_writing()
    slow.connection_lost(None)
    assert memory.unsent_bytes == 0


def test_response_limit_never_falls_below_the_minimum() -> None:
    memory = SendMemory(64 * MiB)
    memory.unsent_bytes = 1 << 40
    assert memory.response_bytes_max() == RESPONSE_BYTES_MIN


def test_large_response_is_written_before_the_next_request() -> None:
    network = Network({ApiKey.FETCH: hot(lambda *_: [bytes(200_000)])})
    connection, transport = network.connect()
    write = transport.writelines

    def writelines(list_of_data: Iterable[Any]) -> None:
        write(list_of_data)
        connection.pause_writing()

    transport.writelines = writelines  # type: ignore[method-assign]
    feed(connection, raw(ApiKey.FETCH, b"x") * 5)
    assert len(transport.frames()) == 1
    connection.resume_writing()
    assert len(transport.frames()) == 2


def test_handler_bug_closes_only_its_own_connection() -> None:
    async def scenario() -> None:
        async def bug(*_: Any) -> None:
            raise AssertionError("no")

        network = Network({ApiKey.HEARTBEAT: module(bug), ApiKey.FETCH: hot(echo)})
        connection, transport = network.connect()
        other, other_transport = network.connect()
        feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT))
        await settle()
        assert transport.is_closed
        assert network.count("riverrun_connections_refused_total", reason="bug") == 1
        assert len(network.bugs) == 1
        feed(other, raw(ApiKey.FETCH, b"fine"))
        assert not other_transport.is_closed
        assert len(other_transport.frames()) == 1

    asyncio.run(scenario())


def test_lost_connection_cancels_fetches_but_not_writes() -> None:
    async def scenario() -> None:
        later = PendingHandler()
        modules = {ApiKey.PRODUCE: hot(later.handle), ApiKey.FETCH: hot(later.handle)}
        network = Network(modules)
        for key in (ApiKey.PRODUCE, ApiKey.FETCH):
            connection, transport = network.connect()
            feed(connection, raw(key, b""))
            transport.close()
            connection.connection_lost(None)
        await settle()
        produce, fetch = later.futures
        assert fetch.cancelled()
        assert not produce.cancelled()
        produce.set_result(b"too late")
        await settle()
        assert not network.listener.pending
        assert not network.count("riverrun_connections_refused_total", reason="cancelled")

    asyncio.run(scenario())


def test_receive_memory_is_limited_except_for_one_connection() -> None:
    network = Network(ECHO, queued_bytes_max=1_000_000)
    body = bytes(900_000)
    pairs = [network.connect() for _ in range(3)]
    left = []
    for connection, _ in pairs:
        data = raw(ApiKey.FETCH, body)
        left.append(feed(connection, data[:700_000]) + data[700_000:])
    assert network.buffer_bytes <= 1_000_000 + 900_014 + READ_AHEAD_BYTES_MAX
    assert [len(data) > 300_000 for data in left] == [False, False, True]
    for (connection, transport), data in zip(pairs, left, strict=True):
        assert transport.is_reading_now, "the connection before it is done"
        assert not feed(connection, data)
    assert [len(transport.frames()) for _, transport in pairs] == [1, 1, 1]
