"""A fake leader: real logs and the real protocol, over connections in memory.

It tracks fetch sessions itself and checks the follower's requests against them. Tests can make it
return errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch
from riverrun.storage.log import Log
from riverrun.storage.segment.reader import ColdRead
from riverrun.wire.apis import ALL_APIS, ApiKey
from riverrun.wire.codec import decode_request, encode_response
from riverrun.wire.fetch import (
    FetchCall,
    FetchPartition,
    FetchResult,
    encode_fetch_response,
    parse_fetch,
)
from riverrun.wire.headers import response_start
from riverrun.wire.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from riverrun.wire.messages.list_offsets_request import ListOffsetsRequest
from riverrun.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.storage.machines import NOW_MS, batch
from tests.storage.virtual_loop import VirtualLoop
from tests.wire.request_headers import body_position, read_request_header

Change = Callable[[FetchResult], FetchResult]
CHUNK_BYTES = 100_000


class Pipe(asyncio.Transport):
    """The follower's end of a connection to a leader."""

    def __init__(self, loop: NetworkLoop, protocol: Any, leader: Leader) -> None:
        super().__init__()
        self._loop, self._protocol, self._leader = loop, protocol, leader
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.is_gone = False

    def is_closing(self) -> bool:
        return self.is_gone

    def write(self, data: Any) -> None:
        self._outgoing += data
        self._loop.call_soon(self._arrived)

    def _arrived(self) -> None:
        while len(self._outgoing) >= 4 and not self.is_gone:
            size = int.from_bytes(self._outgoing[:4], "big")
            frame = bytes(self._outgoing[4 : 4 + size])
            del self._outgoing[: 4 + size]
            self._leader.received(self, frame)

    def respond(self, data: bytes) -> None:
        self._incoming += data
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver in pieces, as a network does."""
        if self._incoming and not self.is_gone:
            room = self._protocol.get_buffer(-1)
            piece = self._incoming[: min(len(room), CHUNK_BYTES)]
            room[: len(piece)] = piece
            del self._incoming[: len(piece)], room
            self._protocol.buffer_updated(len(piece))
            self._loop.call_soon(self._deliver)

    def lose(self, error: OSError | None = None) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._leader.pipes.pop(self, None)
            self._loop.call_soon(self._protocol.connection_lost, error)

    def abort(self) -> None:
        self.lose()

    close = abort


class NetworkLoop(VirtualLoop):
    """A virtual event loop that connects to leaders by host name."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.hosts: dict[tuple[str, int], Leader] = {}
        self.connects: list[float] = []

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **_: Any):  # type: ignore[no-untyped-def,override]
        self.connects.append(self.time())
        await asyncio.sleep(0.001)
        leader = self.hosts.get((host, port))
        if leader is None or not leader.is_up:
            raise ConnectionRefusedError(f"{host}:{port}")
        protocol = factory()
        pipe = Pipe(self, protocol, leader)
        leader.pipes[pipe] = None
        protocol.connection_made(pipe)
        return pipe, protocol


@dataclass
class Led:
    """A partition of the leader."""

    log: Log
    name: str
    index: int
    epoch: int = 0

    def append(self, *values: bytes, **options: Any) -> int:
        self.log.append_as_leader(
            batch(*values, **options), leader_epoch=LeaderEpoch(self.epoch), now_ms=NOW_MS
        )
        return self.log.end_offset

    def commit(self) -> None:
        self.log.advance_high_watermark(self.log.end_offset)


@dataclass
class Held:
    """A waiting fetch."""

    pipe: Pipe
    correlation_id: int
    version: int
    call: FetchCall
    wanted: list[FetchPartition]
    is_full: bool
    timer: asyncio.TimerHandle | None = None


@dataclass
class SessionState:
    """The leader's state of a fetch session."""

    epoch: int = 1
    wanted: dict[tuple[Any, int], FetchPartition] = field(default_factory=dict)
    sent: dict[tuple[Any, int], tuple[int, int]] = field(default_factory=dict)


class Leader:
    def __init__(self, loop: NetworkLoop, host: str = "leader") -> None:
        self.loop = loop
        self.is_up = True
        self.pipes: dict[Pipe, None] = {}
        self.led: dict[tuple[UUID, int], Led] = {}
        self.calls: list[FetchCall] = []
        self.times: list[float] = []
        self.lookups = 0
        self.sessions: dict[int, SessionState] = {}
        self.keeps_sessions = True
        self.responds_to_fetches = True
        self.errors: list[int] = []
        """Error codes of the next whole responses."""
        self.changes: list[Change] = []
        """Changes to the results of the next responses that have any."""
        self.partition_errors: dict[tuple[UUID, int], ErrorCode] = {}
        self.response_bytes_max = 1 << 30
        self._held: list[Held] = []
        self._next_session = 100
        loop.hosts[(host, 9092)] = self

    def die(self) -> None:
        self.is_up = False
        for pipe in list(self.pipes):
            pipe.lose(ConnectionResetError("reset"))

    # Requests

    def received(self, pipe: Pipe, frame: bytes) -> None:
        header = read_request_header(frame)
        key = ApiKey(header.api_key)
        at = body_position(ALL_APIS[key], header.api_version, frame, header.at)
        if key is ApiKey.FETCH:
            call = parse_fetch(frame, at, header.api_version)
            self.calls.append(call)
            self.times.append(self.loop.time())
            if self.responds_to_fetches:
                self._fetch(pipe, header.correlation_id, header.api_version, call)
            return
        body: ListOffsetsResponse | ApiVersionsResponse
        if key is ApiKey.LIST_OFFSETS:
            self.lookups += 1
            body = self._list_offsets(decode_request(key, header.api_version, frame, at))
        else:
            known = (ApiKey.FETCH, ApiKey.LIST_OFFSETS)
            ranges = [(api, ALL_APIS[api].min_version, ALL_APIS[api].max_version) for api in known]
            body = ApiVersionsResponse(
                error_code=ErrorCode.NONE,
                api_keys=tuple(
                    ApiVersion(api_key=api, min_version=low, max_version=high)
                    for api, low, high in ranges
                ),
            )
        data = encode_response(key, header.api_version, body)
        is_flexible = key is ApiKey.LIST_OFFSETS
        start = response_start(header.correlation_id, len(data), is_flexible=is_flexible)
        pipe.respond(start + data)

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        assert request.replica_id == 1, "a follower requests the log end offset"
        by_name = {(led.name, led.index): led for led in self.led.values()}
        topics = []
        for topic in request.topics:
            rows = []
            for wanted in topic.partitions:
                led = by_name[topic.name, wanted.partition_index]
                is_end = wanted.timestamp == -1
                rows.append(
                    ListOffsetsPartitionResponse(
                        partition_index=wanted.partition_index,
                        error_code=ErrorCode.NONE,
                        offset=led.log.end_offset if is_end else led.log.start_offset,
                        leader_epoch=led.epoch,
                    )
                )
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(rows)))
        return ListOffsetsResponse(topics=tuple(topics))

    # Fetches

    def _fetch(self, pipe: Pipe, correlation_id: int, version: int, call: FetchCall) -> None:
        if self.errors:
            self._send(pipe, correlation_id, version, [], error_code=self.errors.pop(0))
            return
        code, wanted = self._session(call)
        if code:
            self._send(pipe, correlation_id, version, [], error_code=code)
            return
        held = Held(pipe, correlation_id, version, call, wanted, call.session_epoch == 0)
        if not self._respond(held, must=False):
            held.timer = self.loop.call_later(call.max_wait_ms / 1000, self._time_out, held)
            self._held.append(held)

    def _session(self, call: FetchCall) -> tuple[int, list[FetchPartition]]:
        if call.session_epoch == 0:
            self.sessions.pop(call.session_id, None)
            if self.keeps_sessions:
                self._next_session += 1
                session = self.sessions[self._next_session] = SessionState()
                session.wanted = {(p.topic, p.partition): p for p in call.partitions}
            return 0, list(call.partitions)
        found = self.sessions.get(call.session_id)
        if found is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, []
        if found.epoch != call.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, []
        found.epoch += 1
        for p in call.partitions:
            found.wanted[p.topic, p.partition] = p
        for key in call.forgotten:
            assert key in found.wanted, f"{key} is not in the session"
            del found.wanted[key]
        return 0, list(found.wanted.values())

    def wake(self) -> None:
        """Records were appended: respond to waiting fetches."""
        for held in list(self._held):
            if held.pipe.is_gone or self._respond(held, must=False):
                self._remove(held)

    def _time_out(self, held: Held) -> None:
        self._remove(held)
        if not held.pipe.is_gone:
            self._respond(held, must=True)

    def _remove(self, held: Held) -> None:
        self._held.remove(held)
        if held.timer is not None:
            held.timer.cancel()

    def _respond(self, held: Held, *, must: bool) -> bool:
        results = []
        left = min(held.call.max_bytes, self.response_bytes_max)
        for wanted in held.wanted:
            result = self._read(wanted, left)
            left -= len(result.records or b"")
            results.append(result)
        is_news = any(r.records or r.error_code or r.diverging for r in results)
        if not is_news and not must:
            return False
        session_id = held.call.session_id if not held.is_full else self._next_session
        session = self.sessions.get(session_id)
        if session is not None:
            results = [r for r in results if held.is_full or self._is_new(session, r)]
        if results and self.changes:
            change = self.changes.pop(0)
            results = [change(r) for r in results]
        self._send(
            held.pipe,
            held.correlation_id,
            held.version,
            results,
            session_id=session_id if self.keeps_sessions else 0,
        )
        return True

    def _is_new(self, session: SessionState, result: FetchResult) -> bool:
        key, sent = (
            (result.topic, result.partition),
            (result.high_watermark, result.log_start_offset),
        )
        is_new = bool(result.records or result.error_code or result.diverging)
        is_new |= session.sent.get(key) != sent
        session.sent[key] = sent
        return is_new

    def _read(self, wanted: FetchPartition, left: int) -> FetchResult:
        assert isinstance(wanted.topic, UUID)
        key = (wanted.topic, wanted.partition)
        led = self.led.get(key)
        if led is None:
            return FetchResult(*key, ErrorCode.UNKNOWN_TOPIC_ID)
        if key in self.partition_errors:
            return FetchResult(*key, self.partition_errors[key])
        if wanted.leader_epoch != led.epoch:
            is_old = wanted.leader_epoch < led.epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
            return FetchResult(*key, code)
        log = led.log
        offsets = (0, log.high_watermark, log.last_stable_offset, log.start_offset)
        if wanted.offset < log.start_offset:
            return FetchResult(*key, ErrorCode.OFFSET_OUT_OF_RANGE)
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.epoch_end(LeaderEpoch(wanted.last_fetched_epoch))
            if epoch < wanted.last_fetched_epoch or end < wanted.offset:
                return FetchResult(*key, *offsets, diverging=(epoch, end))
        if left <= 0:
            return FetchResult(*key, *offsets)
        try:
            found = log.read(
                wanted.offset, max_bytes=min(wanted.max_bytes, left), end=log.end_offset
            )
        except KafkaError as error:
            return FetchResult(*key, error.code)
        if isinstance(found, ColdRead):
            found = found.load()
        return FetchResult(*key, *offsets, records=bytes(found.data))

    def _send(
        self,
        pipe: Pipe,
        correlation_id: int,
        version: int,
        results: list[FetchResult],
        *,
        error_code: int = 0,
        session_id: int = 0,
    ) -> None:
        buffers = encode_fetch_response(
            version, results, error_code=error_code, session_id=session_id
        )
        body = b"".join(bytes(buffer) for buffer in buffers)
        pipe.respond(response_start(correlation_id, len(body), is_flexible=True) + body)
