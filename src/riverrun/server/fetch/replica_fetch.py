"""Fetch by followers: how data is replicated, and how leaders learn who has it.

From v15 on a follower names its broker epoch, and counts only with the one that is registered
(KIP-903); all else is refused, for any client could say that it is replica 2, and would take the
news away from the real one. A follower that has just registered, and of which we have not heard
yet, asks again. Unlike a consumer's, this fetch reads up to the end of the log, acknowledges by its
offsets, and is woken by appends. See ``server/fetch/replica_sessions.py`` for why it looks only at
partitions with news.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.replication.peers import UNREGISTERED
from riverrun.replication.reading import PartitionRead, failed, read_for_replica
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.fetch.consumer_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from riverrun.server.fetch.replica_sessions import Entry, ReplicaSession
from riverrun.server.leaders import MOVED, leader_of, missing
from riverrun.wire.fetch import (
    REPLICA_STATE_FROM,
    FetchCall,
    FetchResult,
    encode_fetch_response,
)

if TYPE_CHECKING:
    from riverrun.ports.files import Buffer
    from riverrun.server.services import BrokerServices

WAIT_MS_MAX = 600_000
LEADERS_FROM = 16
"""Followers are told the leader (KIP-951), not where it is: they know all brokers."""
Read = tuple[Entry, PartitionRead]


def handle(
    services: BrokerServices, context: RequestContext, call: FetchCall
) -> list[Buffer] | Awaitable[list[Buffer]]:
    registered = services.replicas.peers.epoch_of(NodeId(call.replica_id))
    if (
        context.api_version < REPLICA_STATE_FROM
        or registered == UNREGISTERED
        or call.replica_epoch != registered
    ):
        return _refuse(services, context, call)
    try:
        session, is_incremental = _session(services, call)
    except KafkaError as error:
        return encode_fetch_response(context.api_version, [], error_code=error.code)
    if session.waiting is not None:
        # Asked again before it was answered: what it waited for will be in the next answer.
        session.waiting.wake()
    session.contact.fetched_at = services.clock.monotonic()
    session.ask(call.partitions, call.forgotten, is_counted=call.replica_epoch == registered)
    return _ReplicaFetch(services, context, call, session, is_incremental=is_incremental).begin()


def _refuse(services: BrokerServices, context: RequestContext, call: FetchCall) -> list[Buffer]:
    """An old incarnation, or somebody who only says that it is a replica."""
    version = context.api_version
    results = [
        FetchResult(
            wanted.topic,
            wanted.partition,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            leader=leader_of(services, wanted.topic, wanted.partition)
            if version >= LEADERS_FROM
            else None,
        )
        for wanted in call.partitions
    ]
    return encode_fetch_response(version, results)


def _session(services: BrokerServices, call: FetchCall) -> tuple[ReplicaSession, bool]:
    """The session, and whether only news is to be told."""
    sessions, node = services.fetch_sessions.replicas, NodeId(call.replica_id)
    if call.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if call.session_id != NO_SESSION:
            sessions.close(call.session_id, node)
        if call.session_epoch == FINAL_EPOCH:
            return ReplicaSession(NO_SESSION, node, call.replica_epoch), False
        return sessions.create(node, call.replica_epoch), False
    session = sessions.resume(
        call.session_id, call.session_epoch, node=node, broker_epoch=call.replica_epoch
    )
    return session, True


class _ReplicaFetch:
    """One fetch from its first look to its answer."""

    __slots__ = (
        "_call",
        "_context",
        "_future",
        "_is_incremental",
        "_is_scheduled",
        "_services",
        "_session",
        "_timer",
    )

    def __init__(
        self,
        services: BrokerServices,
        context: RequestContext,
        call: FetchCall,
        session: ReplicaSession,
        *,
        is_incremental: bool,
    ) -> None:
        self._services = services
        self._context = context
        self._call = call
        self._session = session
        self._is_incremental = is_incremental
        self._future: asyncio.Future[list[Buffer]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False

    def begin(self) -> list[Buffer] | Awaitable[list[Buffer]]:
        call = self._call
        reads, size, must_answer = self._look()
        # The first answer of a session goes at once: the follower learns the high watermarks.
        is_new = not self._is_incremental and self._session.id != NO_SESSION
        if must_answer or size >= call.min_bytes or call.max_wait_ms <= 0 or is_new:
            return self._finish(reads)
        self._put_back(reads)
        return self._wait()

    # -- Reading ----------------------------------------------------------------------------------

    def _look(self) -> tuple[list[Read], int, bool]:
        """Every partition with news, the bytes in all, and whether the follower must hear of them
        at once.
        """
        session, call = self._session, self._call
        left = min(call.max_bytes, self._services.outgoing.answer_bytes_max())
        news, session.news = session.news, {}
        reads: list[Read] = []
        size, must_answer = 0, False
        for entry in news:
            if left <= 0 and size and not entry.is_asked:
                session.news[entry] = None  # the next answer begins with it
                continue
            read = self._read(entry, min(entry.max_bytes, left), at_least_one=size == 0)
            if read.cold is not None:
                size += 1
                left -= min(entry.max_bytes, left)
                must_answer = True
            elif read.data:
                size += len(read.data)
                left -= len(read.data)
            elif read.error_code or read.diverging is not None:
                must_answer = True
            else:
                if left <= 0:
                    session.news[entry] = None
                must_answer |= self._is_awaited(entry, read)
            reads.append((entry, read))
        return reads, size, must_answer

    def _is_awaited(self, entry: Entry, read: PartitionRead) -> bool:
        """Whether somebody waits for the follower to hear of it, though there are no records."""
        if 0 <= entry.start_offset != read.log_start_offset:
            return True  # whoever deleted records does
        peers = self._services.replicas.peers
        return peers.are_followers_read and 0 <= entry.high_watermark != read.high_watermark

    def _read(self, entry: Entry, max_bytes: int, *, at_least_one: bool) -> PartitionRead:
        partition = entry.partition
        topic, index = entry.key
        if partition is None or partition.is_closed:
            assert not isinstance(topic, str), f"{topic} by name in a version with topic ids"
            partition = self._services.replicas.find_by_id(topic, index)
            entry.watch(partition)
            if partition is None:
                return failed(missing(self._services, topic, index))
        session = self._session
        is_first, entry.is_asked = entry.is_asked, False
        return read_for_replica(
            partition,
            session.node,
            entry.fetch,
            contact=session.contact if session.is_counted else None,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            is_first=is_first,
        )

    def _put_back(self, reads: list[Read]) -> None:
        """Not answered yet: all of it is still news."""
        session = self._session
        for entry, read in reads:
            if (
                read.data
                or read.high_watermark != entry.high_watermark
                or read.log_start_offset != entry.start_offset
            ):
                session.news[entry] = None

    # -- Waiting ----------------------------------------------------------------------------------

    def _wait(self) -> asyncio.Future[list[Buffer]]:
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        self._timer = loop.call_later(
            min(self._call.max_wait_ms, WAIT_MS_MAX) / 1000, self._complete, True
        )
        future.add_done_callback(self._finished)
        self._session.waiting = self
        return future

    def wake(self) -> None:
        """There is news; answered after this turn, so that one answer takes all of it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._complete, False)

    def _complete(self, is_due: bool) -> None:
        self._is_scheduled = False
        future = self._future
        if future is None or future.done():
            return
        if self._session.waiting is not self:
            # The follower has asked again, and the news are for that question.
            future.set_result(self._encode([]))
            return
        reads, size, must_answer = self._look()
        if not (is_due or must_answer or size >= self._call.min_bytes):
            self._put_back(reads)
            return
        answer = self._finish(reads)
        if isinstance(answer, list):
            future.set_result(answer)
        else:
            self._stop_waiting()
            task = asyncio.ensure_future(answer)
            task.add_done_callback(lambda done: _hand_over(done, future))

    def _finished(self, _: asyncio.Future[list[Buffer]]) -> None:
        """Answered, or the follower is gone."""
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        session = self._session
        if session.waiting is self:
            session.waiting = None
        if session.id == NO_SESSION:
            session.close()

    # -- Answering --------------------------------------------------------------------------------

    def _finish(self, reads: list[Read]) -> list[Buffer] | Awaitable[list[Buffer]]:
        if any(read.cold is not None for _, read in reads):
            return self._load(reads)
        return self._encode(reads)

    async def _load(self, reads: list[Read]) -> list[Buffer]:
        """Some of it lies on the disk only: a thread reads it, and the loop goes on meanwhile."""
        for place, (entry, read) in enumerate(reads):
            if read.cold is not None:
                try:
                    read.fill(await self._services.log_runner.load(read.cold))
                except KafkaError as error:
                    reads[place] = (entry, failed(error.code))
        return self._encode(reads)

    def _encode(self, reads: list[Read]) -> list[Buffer]:
        results: list[FetchResult] = []
        session, version = self._session, self._context.api_version
        for entry, read in reads:
            is_news = bool(read.data or read.error_code or read.diverging)
            is_new = entry.told(read.high_watermark, read.log_start_offset)
            if self._is_incremental and not is_news and not is_new:
                continue
            if is_news:
                session.sent.append(entry)
            topic, index = entry.key
            leader = None
            if read.error_code in MOVED and version >= LEADERS_FROM:
                leader = leader_of(self._services, topic, index)
            results.append(
                FetchResult(
                    topic, index, read.error_code, read.high_watermark, read.last_stable_offset,
                    read.log_start_offset, None, read.data, diverging=read.diverging,
                    leader=leader,
                )
            )  # fmt: skip
        if session.id == NO_SESSION and self._future is None:
            session.close()
        return encode_fetch_response(version, results, session_id=session.id)


def _hand_over(done: asyncio.Future[list[Buffer]], future: asyncio.Future[list[Buffer]]) -> None:
    if future.done():
        return
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)
