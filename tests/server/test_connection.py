"""Framing, order, backpressure and memory of one connection, byte by byte on a fake transport."""

from __future__ import annotations

import asyncio
import struct
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

from .fakes import Network, answer, feed, frame, hot, module

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


def test_many_frames_of_one_read_are_answered_by_one_write() -> None:
    connection, transport = Network(HEARTBEATS).connect()
    feed(connection, b"".join(frame(ApiKey.HEARTBEAT, 4, BEAT, i) for i in range(50)))
    assert correlations(transport.frames()) == list(range(50))
    assert answer(ApiKey.HEARTBEAT, 4, transport.frames()[49]) == (49, FINE)
    assert transport.writes == 1


def test_a_busy_connection_lets_others_have_their_turn() -> None:
    network = Network(HEARTBEATS)
    connection, transport = network.connect()
    data = frame(ApiKey.HEARTBEAT, 4, BEAT) * (2 * FRAMES_PER_ITERATION + 10)
    assert not feed(connection, data[: len(data) // 2], take_turns=False)
    assert len(transport.frames()) == FRAMES_PER_ITERATION
    assert not transport.is_reading_now
    network.listener.take_turns()
    assert transport.is_reading_now
    assert not feed(connection, data[len(data) // 2 :])
    assert len(transport.frames()) == 2 * FRAMES_PER_ITERATION + 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 70_000), min_size=1, max_size=6),
    st.lists(st.integers(1, 50_000), min_size=1, max_size=6),
)
def test_frames_are_found_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    bodies = [bytes([i + 1]) * size for i, size in enumerate(sizes)]
    data = b"".join(raw(ApiKey.PRODUCE, body, i) for i, body in enumerate(bodies))
    for cut in cuts:
        feed(connection, data[:cut])
        data = data[cut:]
    feed(connection, data)
    assert [answered[4:] for answered in transport.frames()] == bodies
    assert correlations(transport.frames()) == list(range(len(sizes)))
    assert transport.is_reading_now
    connection.connection_lost(None)
    assert network.buffer_bytes == 0


def test_a_frame_may_come_byte_by_byte() -> None:
    connection, transport = Network(ECHO).connect()
    feed(connection, raw(ApiKey.FETCH, b"slow") * 3, step=1)
    assert [data[4:] for data in transport.frames()] == [b"slow"] * 3


def test_what_was_written_does_not_change_when_the_buffer_is_used_again() -> None:
    """uvloop keeps views: a handler's copy goes out, never a piece of the receive buffer."""
    connection, transport = Network(ECHO).connect()
    feed(connection, raw(ApiKey.FETCH, b"a" * 9000))
    feed(connection, raw(ApiKey.FETCH, b"b" * 9000))
    assert [data[4:5] for data in transport.frames()] == [b"a", b"b"]


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 1001])
def test_an_impossible_length_closes_the_connection_at_once(size: int) -> None:
    network = Network(HEARTBEATS, request_bytes_max=1000)
    connection, transport = network.connect()
    feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT) + struct.pack(">i", size))
    assert transport.is_closed
    assert len(transport.frames()) == 1, "what came before is answered"
    kind = "negative_length" if size < 0 else "oversized"
    assert network.count("riverrun_connections_refused_total", reason=kind) == 1
    assert network.buffer_bytes == BUFFER_BYTES_MIN


def test_bytes_after_the_end_are_ignored() -> None:
    connection, transport = Network(HEARTBEATS).connect()
    feed(connection, struct.pack(">i", -1))
    feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT) * 3)
    assert transport.is_closed
    assert not transport.frames()


def test_a_declared_length_alone_takes_no_memory() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    feed(connection, struct.pack(">i", 90_000_000) + bytes(100))
    assert network.buffer_bytes == BUFFER_BYTES_MIN
    feed(connection, bytes(1_000_000))
    assert 1_000_000 < network.buffer_bytes <= 2 * 1_000_104 + BUFFER_BYTES_MIN
    assert not transport.is_closed


def test_an_idle_connection_holds_no_buffer() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    feed(connection, raw(ApiKey.FETCH, bytes(3_000_000)))
    assert network.buffer_bytes >= 3_000_000
    network.sweep(2)
    assert network.buffer_bytes >= 3_000_000, "it was busy until now"
    network.sweep(2)
    assert network.buffer_bytes == 0
    feed(connection, raw(ApiKey.FETCH, b"again"))
    assert transport.frames()[-1][4:] == b"again"


def test_a_busy_buffer_grows_so_that_one_read_takes_many_small_frames() -> None:
    network = Network(HEARTBEATS)
    connection, _ = network.connect()
    data = frame(ApiKey.HEARTBEAT, 4, BEAT)
    feed(connection, data * 30_000)
    assert BUFFER_BYTES_MIN < network.buffer_bytes <= READ_AHEAD_BYTES_MAX


def test_large_buffers_are_not_kept_beyond_their_limit() -> None:
    network = Network(ECHO, retained_bytes_max=5_000_000)
    connections = [network.connect()[0] for _ in range(4)]
    for connection in connections:
        feed(connection, raw(ApiKey.FETCH, bytes(2_000_000)))
    assert 2_000_000 <= network.buffer_bytes <= 5_000_000


class Later:
    """Handlers whose answers come when the test says so."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[Any]] = []

    def handle(self, *_: Any) -> asyncio.Future[Any]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_answers_leave_in_the_order_of_the_requests() -> None:
    async def scenario() -> None:
        later = Later()
        connection, transport = Network({ApiKey.PRODUCE: hot(later.handle)}).connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(4)))
        first, second, third, fourth = later.futures
        third.set_result(b"3")
        second.set_result(None)  # acks=0
        await turn()
        assert transport.frames() == []
        first.set_result([b"1", b"!"])
        await turn()
        assert [data[4:] for data in transport.frames()] == [b"1!", b"3"]
        fourth.set_result(b"4")
        await turn()
        assert correlations(transport.frames()) == [0, 2, 3]

    asyncio.run(scenario())


def test_an_answer_that_is_ready_waits_for_those_before_it() -> None:
    async def scenario() -> None:
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answers: list[Any] = [waiting, b"2", None, b"4"]
        network = Network({ApiKey.PRODUCE: hot(lambda *_: answers.pop(0))})
        connection, transport = network.connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(4)))
        assert not transport.frames()
        waiting.set_result(b"1")
        await turn()
        assert [data[4:] for data in transport.frames()] == [b"1", b"2", b"4"]

    asyncio.run(scenario())


def test_other_requests_are_handled_one_after_the_other() -> None:
    async def scenario() -> None:
        later, seen = Later(), []

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
        await turn()
        assert (len(later.futures), seen) == (2, [])
        later.futures[1].set_result(FINE)
        await turn()
        assert (len(later.futures), seen) == (3, ["groups"])
        assert not transport.is_reading_now
        later.futures[2].set_result(b"")
        await turn()
        assert seen == ["groups", "groups"]
        assert transport.is_reading_now
        assert correlations(transport.frames()) == [1, 1, 2, 3, 2]

    asyncio.run(scenario())


def test_only_so_many_requests_are_in_flight() -> None:
    async def scenario() -> None:
        later = Later()
        network = Network({ApiKey.PRODUCE: hot(later.handle)}, in_flight_max=3)
        connection, transport = network.connect()
        feed(connection, b"".join(raw(ApiKey.PRODUCE, b"", i) for i in range(5)))
        assert len(later.futures) == 3
        assert not transport.is_reading_now
        for number in range(5):
            later.futures[number].set_result(b"")
            await turn()
        assert correlations(transport.frames()) == list(range(5))
        assert transport.is_reading_now
        assert not network.listener.pending

    asyncio.run(scenario())


def test_who_does_not_read_answers_is_not_read_from() -> None:
    network = Network(ECHO)
    connection, transport = network.connect()
    connection.pause_writing()
    feed(connection, raw(ApiKey.FETCH, b"x") * 2)
    assert not transport.frames()
    assert not transport.is_reading_now
    connection.resume_writing()
    assert len(transport.frames()) == 2
    assert transport.is_reading_now


def test_answers_that_nobody_reads_leave_less_room_for_others() -> None:
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


def test_a_batch_is_sent_however_much_is_unsent() -> None:
    memory = SendMemory(64 * MiB)
    memory.unsent_bytes = 1 << 40
    assert memory.response_bytes_max() == RESPONSE_BYTES_MIN


def test_large_answers_are_written_before_the_next_frame_is_handled() -> None:
    network = Network({ApiKey.FETCH: hot(lambda *_: [bytes(200_000)])})
    connection, transport = network.connect()
    write = transport.writelines

    def writelines(data: Any) -> None:
        write(data)
        connection.pause_writing()

    transport.writelines = writelines  # type: ignore[method-assign]
    feed(connection, raw(ApiKey.FETCH, b"x") * 5)
    assert len(transport.frames()) == 1
    connection.resume_writing()
    assert len(transport.frames()) == 2


def test_a_bug_costs_this_connection_and_no_other() -> None:
    async def scenario() -> None:
        async def bug(*_: Any) -> None:
            raise AssertionError("no")

        network = Network({ApiKey.HEARTBEAT: module(bug), ApiKey.FETCH: hot(echo)})
        connection, transport = network.connect()
        other, other_transport = network.connect()
        feed(connection, frame(ApiKey.HEARTBEAT, 4, BEAT))
        await turn()
        assert transport.is_closed
        assert network.count("riverrun_connections_refused_total", reason="bug") == 1
        assert len(network.bugs) == 1
        feed(other, raw(ApiKey.FETCH, b"fine"))
        assert not other_transport.is_closed
        assert len(other_transport.frames()) == 1

    asyncio.run(scenario())


def test_a_lost_connection_gives_up_reads_and_carries_changes_through() -> None:
    async def scenario() -> None:
        later = Later()
        modules = {ApiKey.PRODUCE: hot(later.handle), ApiKey.FETCH: hot(later.handle)}
        network = Network(modules)
        for key in (ApiKey.PRODUCE, ApiKey.FETCH):
            connection, transport = network.connect()
            feed(connection, raw(key, b""))
            transport.close()
            connection.connection_lost(None)
        await turn()
        produce, fetch = later.futures
        assert fetch.cancelled()
        assert not produce.cancelled()
        produce.set_result(b"too late")
        await turn()
        assert not network.listener.pending
        assert not network.count("riverrun_connections_refused_total", reason="cancelled")

    asyncio.run(scenario())


def test_memory_for_requests_is_limited_and_one_connection_always_goes_on() -> None:
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
        assert transport.is_reading_now, "the one before it is done"
        assert not feed(connection, data)
    assert [len(transport.frames()) for _, transport in pairs] == [1, 1, 1]
