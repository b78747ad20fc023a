"""Drives the core: one event at a time, and its effects strictly in order.

An effect that must be durable delays later effects. A flush does not, because a slow disk must not
delay votes. Requests to other members run as separate tasks. Storage, network and the observer of
decisions are Protocols.

A failing disk ends ``run`` with the error and stops the node, because the content of the disk is
unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, assert_never

import structlog
from msgspec.structs import replace

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.aio import LogLimiter, OwnedTasks
from riverrun.ports.clock import Clock
from riverrun.raft import effects as do
from riverrun.raft.core import Raft
from riverrun.raft.events import (
    Answered,
    Event,
    Failed,
    Flushed,
    LogChanged,
    Received,
    Resign,
    SnapshotFailed,
    SnapshotInstalled,
    Tick,
)
from riverrun.raft.log_view import LogView
from riverrun.raft.messages import FetchResponse, FetchSnapshotResponse, Request, Response
from riverrun.raft.types import Endpoint, QuorumState, SnapshotId

log = structlog.get_logger(__name__)

LOG_SECONDS: Final = 10.0
WAIT_SECONDS_MAX: Final = 60.0
"""Longest time between two checks of the clock."""


class RaftStore(LogView, Protocol):
    """The log, the snapshots and the election state. Disk failures raise OSError."""

    def append(self, data: bytes) -> None:
        """Append a leader's batches. Raises KafkaError, without any change, if they do not follow
        the log."""
        ...

    def append_control(self, epoch: LeaderEpoch, records: Iterable[do.ControlRecord]) -> None: ...

    async def truncate(self, offset: Offset) -> None:
        """Durable when it returns."""
        ...

    async def flush(self) -> None:
        """Make everything appended so far durable."""
        ...

    async def persist(self, state: QuorumState) -> None:
        """Durable when it returns."""
        ...

    async def read(self, offset: Offset, max_bytes: int) -> bytes: ...

    async def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes: ...

    async def write_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None: ...

    async def install_snapshot(self, snapshot: SnapshotId) -> bool:
        """Returns False, without any change, if the fetched file is not a complete snapshot."""
        ...


class RaftNetwork(Protocol):
    async def ask(self, peer: NodeId, endpoint: Endpoint, request: Request) -> Response:
        """Raises ConnectionRefusedError if the peer is proven dead; otherwise OSError or
        TimeoutError."""
        ...


class RaftListener(Protocol):
    """Receives decisions in order. Must not block."""

    def committed(self, high_watermark: Offset) -> None: ...

    def became_leader(self, epoch: LeaderEpoch, start_offset: Offset) -> None: ...

    def lost_leadership(self, epoch: LeaderEpoch) -> None: ...

    def follows(self, leader: NodeId | None, epoch: LeaderEpoch) -> None: ...

    def leader_committed(self, high_watermark: Offset) -> None:
        """The committed offset reported by our leader. Our log may not have reached it yet."""
        ...

    def snapshot_installed(self, snapshot: SnapshotId) -> None: ...


class NoNetwork:
    """The network of a single-node cluster."""

    async def ask(self, peer: NodeId, endpoint: Endpoint, request: Request) -> Response:
        raise ConnectionError("this node was started alone")


class RaftDriver:
    """Runs one quorum member: ``receive`` requests, call ``log_changed`` after local appends,
    ``run``."""

    def __init__(
        self,
        raft: Raft,
        store: RaftStore,
        network: RaftNetwork,
        listener: RaftListener,
        clock: Clock,
    ) -> None:
        self._raft = raft
        self._store = store
        self._network = network
        self._listener = listener
        self._clock = clock
        self._events: deque[Event] = deque()
        self._effects: deque[do.Effect] = deque()
        """Effects of the previous event. They are kept here so that a caller can continue after a
        cancelled ``run``."""
        self._wake = asyncio.Event()
        self._requests = OwnedTasks(lambda _name, error: self._fail(error))
        self._flush: asyncio.Task[None] | None = None
        self._must_flush_again = False
        self._failure: BaseException | None = None
        self._awaited: list[tuple[Callable[[], bool], asyncio.Event]] = []
        self._log_limiter = LogLimiter(clock, interval_seconds=LOG_SECONDS)

    def receive(self, request: Request) -> asyncio.Future[Response]:
        """Handle a request of another member. The response may take as long as a long poll."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.post(Received(request, future))
        return future

    def post(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def log_changed(self) -> None:
        """The core must process the new log end before any other event."""
        if not self._events or not isinstance(self._events[0], LogChanged):
            self._events.appendleft(LogChanged())
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled. Raises if the disk or an assertion fails."""
        try:
            while True:
                await self.take_turns()
                await self._wait()
        finally:
            self._requests.cancel()

    async def take_turns(self) -> None:
        """Process all queued events and their effects."""
        while True:
            while self._effects:
                await self._execute(self._effects[0])
                self._effects.popleft()
            if self._failure is not None:
                raise self._failure
            now = self._clock.monotonic()
            if self._events:
                event = self._events.popleft()
            elif now >= self._raft.next_deadline():
                event = Tick()
            else:
                return
            self._effects.extend(self._raft.step(now, event))
            self._after_step()

    async def until(self, event: Event, is_reached: Callable[[], bool], limit_s: float) -> None:
        """Queue an event and wait, up to the limit, for its result while ``run`` continues."""
        reached = asyncio.Event()
        self._awaited.append((is_reached, reached))
        self.post(event)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await reached.wait()

    def _after_step(self) -> None:
        for is_reached, reached in self._awaited:
            if is_reached():
                reached.set()

    async def settle(self) -> None:
        """Like ``take_turns``, but also wait until everything is flushed."""
        await self.take_turns()
        while self._flush is not None:
            await asyncio.wait((self._flush,))
            await self.take_turns()

    async def finish_flush(self) -> None:
        """Wait for the current flush; raises if it fails."""
        if self._flush is not None:
            await asyncio.wait((self._flush,))
        if self._failure is not None:
            raise self._failure

    async def _wait(self) -> None:
        if self._events or self._failure is not None:
            return
        self._wake.clear()
        left = self._raft.next_deadline() - self._clock.monotonic()
        timer = asyncio.get_running_loop().call_later(
            min(max(left, 0.0), WAIT_SECONDS_MAX), self._wake.set
        )
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    async def _execute(self, effect: do.Effect) -> None:
        match effect:
            case do.Persist():
                await self._store.persist(effect.state)
            case do.Send():
                self._send(effect)
            case do.Respond():
                await self._respond(effect)
            case do.Append():
                self._append(effect)
            case do.AppendControl():
                self._append_control(effect)
            case do.Truncate():
                await self._store.truncate(effect.offset)
                self._events.appendleft(LogChanged())
            case do.Flush():
                self._begin_flush()
            case do.WriteSnapshot():
                await self._write_snapshot(effect)
            case do.InstallSnapshot():
                await self._install_snapshot(effect)
            case do.Committed():
                self._listener.committed(effect.high_watermark)
            case do.BecameLeader():
                self._listener.became_leader(effect.epoch, effect.start_offset)
            case do.LostLeadership():
                self._listener.lost_leadership(effect.epoch)
            case do.Follows():
                self._listener.follows(effect.leader, effect.epoch)
            case _:
                assert_never(effect)

    def _send(self, effect: do.Send) -> None:
        self._requests.start(self._ask(effect))

    async def _ask(self, effect: do.Send) -> None:
        try:
            response = await self._network.ask(effect.peer, effect.endpoint, effect.request)
        except ConnectionRefusedError:
            self.post(Failed(effect.peer, effect.request, is_refused=True))
        except (OSError, TimeoutError):
            self.post(Failed(effect.peer, effect.request))
        else:
            self.post(Answered(effect.peer, effect.request, response))
            if isinstance(response, FetchResponse) and response.error is ErrorCode.NONE:
                self._listener.leader_committed(response.high_watermark)

    async def _respond(self, effect: do.Respond) -> None:
        token = effect.token
        assert isinstance(token, asyncio.Future), f"{token} was not given by receive"
        if token.done():
            return  # the caller is gone
        response = effect.response
        match effect.read:
            case do.ReadLog(offset, max_bytes):
                assert isinstance(response, FetchResponse), f"{response} has no records"
                response = replace(response, data=await self._store.read(offset, max_bytes))
            case do.ReadSnapshot(snapshot, position, max_bytes):
                assert isinstance(response, FetchSnapshotResponse), f"{response} has no bytes"
                data = await self._store.read_snapshot(snapshot, position, max_bytes)
                response = replace(response, data=data)
            case None:
                pass
        if not token.done():
            token.set_result(response)

    def _append(self, effect: do.Append) -> None:
        try:
            self._store.append(effect.data)
        except (OSError, KafkaError) as error:
            if self._log_limiter.admit("append") is not None:
                log.warning("metadata of the leader not stored", error=str(error))
            self._events.appendleft(Failed(effect.peer, effect.request))
        else:
            self._events.appendleft(LogChanged())

    def _append_control(self, effect: do.AppendControl) -> None:
        try:
            self._store.append_control(effect.epoch, effect.records)
        except OSError as error:
            log.warning("no disk space to lead the metadata quorum", error=str(error))
            self._events.appendleft(Resign())
        else:
            self._events.appendleft(LogChanged())

    async def _write_snapshot(self, effect: do.WriteSnapshot) -> None:
        try:
            await self._store.write_snapshot(effect.snapshot, effect.position, effect.data)
        except OSError as error:
            if self._log_limiter.admit("snapshot") is not None:
                log.warning("no disk space for the leader's snapshot", error=str(error))
            self._events.appendleft(SnapshotFailed(effect.snapshot))

    async def _install_snapshot(self, effect: do.InstallSnapshot) -> None:
        if await self._store.install_snapshot(effect.snapshot):
            self._listener.snapshot_installed(effect.snapshot)
            self._events.appendleft(SnapshotInstalled(effect.snapshot))
        else:
            self._events.appendleft(SnapshotFailed(effect.snapshot))

    def _begin_flush(self) -> None:
        if self._flush is not None:
            self._must_flush_again = True
            return
        self._flush = asyncio.get_running_loop().create_task(self._flush_all())
        self._flush.add_done_callback(self._flush_ended)

    async def _flush_all(self) -> None:
        """A separate task that survives the cancellation of ``run``. If a failure were lost, the
        next fsync would succeed without the data."""
        while True:
            self._must_flush_again = False
            await self._store.flush()
            self.post(Flushed())
            if not self._must_flush_again:
                # Reset it here and not in the callback: a caller in between would wait for a flush
                # that is over.
                self._flush = None
                return

    def _flush_ended(self, task: asyncio.Task[None]) -> None:
        if self._flush is task:
            self._flush = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._wake.set()
