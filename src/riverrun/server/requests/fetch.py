"""Fetch: whole batches from the page cache to the socket, or a wait until there are some.

v7 sessions (KIP-227) · v9 leader epochs · v11 rack · v12 flexible, diverging epochs · v13 topic
ids · v15 replica state · v16 endpoints (KIP-951) · v17 directory ids · v18 high watermark of
followers.

Consumers are served here, from the leader or from a follower (KIP-392); followers in
``replica_fetch.py``.

An answer leaves at once when it has min.bytes, an error, or no time to wait; otherwise the fetch
watches its partitions and is called when more becomes readable, or by its timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.replication.partition import Partition
from riverrun.replication.reading import (
    PartitionRead,
    code_for_consumer,
    failed,
    nearest_replica,
    read_elsewhere,
    read_partition,
)
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.fetch import replica_fetch
from riverrun.server.fetch.consumer_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionPartition,
)
from riverrun.server.leaders import MOVED, endpoints_of, leader_of, missing
from riverrun.wire.fetch import (
    TOPIC_IDS_FROM,
    FetchCall,
    FetchResult,
    encode_fetch_response,
    parse_fetch,
)

if TYPE_CHECKING:
    from riverrun.ports.files import Buffer
    from riverrun.server.services import BrokerServices

READ_COMMITTED = 1
RACKS_FROM = 11
LEADERS_FROM = 16
WAIT_MS_MAX = 600_000
"""No client waits longer; one that says so would only be forgotten here."""


def handle_frame(
    services: BrokerServices, context: RequestContext, buffer: memoryview, at: int
) -> list[Buffer] | Awaitable[list[Buffer]]:
    version = context.api_version
    call = parse_fetch(buffer, at, version)
    if call.replica_id >= 0:
        return replica_fetch.handle(services, context, call)
    try:
        session, wanted, is_incremental = _session(services, call, version)
    except KafkaError as error:
        return encode_fetch_response(version, [], error_code=error.code)
    return _Fetch(services, call, context, session, wanted, is_incremental=is_incremental).begin()


def _session(
    services: BrokerServices, call: FetchCall, version: int
) -> tuple[FetchSession | None, list[SessionPartition], bool]:
    """The session, the partitions to read, and whether only news is to be told."""
    asked = [
        SessionPartition(
            p.topic, p.partition, p.offset, p.leader_epoch, p.last_fetched_epoch, p.max_bytes
        )
        for p in call.partitions
    ]
    sessions, uses_ids = services.fetch_sessions, version >= TOPIC_IDS_FROM
    if call.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if call.session_id != NO_SESSION:
            sessions.close(call.session_id)
        if call.session_epoch == FINAL_EPOCH:
            return None, asked, False
        return sessions.create(asked, uses_topic_ids=uses_ids), asked, False
    session = sessions.resume(call.session_id, call.session_epoch, uses_topic_ids=uses_ids)
    session.update(asked, call.forgotten)
    return session, list(session.partitions.values()), True


class _Fetch:
    """One fetch from its first read to its answer."""

    __slots__ = (
        "_bytes_missing",
        "_call",
        "_context",
        "_future",
        "_is_incremental",
        "_is_scheduled",
        "_services",
        "_session",
        "_timer",
        "_wanted",
        "_watched",
    )

    def __init__(
        self,
        services: BrokerServices,
        call: FetchCall,
        context: RequestContext,
        session: FetchSession | None,
        wanted: list[SessionPartition],
        *,
        is_incremental: bool,
    ) -> None:
        self._services = services
        self._call = call
        self._context = context
        self._session = session
        self._wanted = wanted
        self._is_incremental = is_incremental
        self._watched: list[Partition] = []
        self._future: asyncio.Future[list[Buffer]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bytes_missing = 0
        self._is_scheduled = False

    def begin(self) -> list[Buffer] | Awaitable[list[Buffer]]:
        call = self._call
        reads, size, must_answer = self._read()
        # An answer can never be larger than what we send at most: then that much will do.
        least = min(call.min_bytes, self._bytes_max())
        if must_answer or size >= least or call.max_wait_ms <= 0 or not self._wanted:
            return self._finish(reads)
        return self._wait(least - size)

    # -- Reading ----------------------------------------------------------------------------------

    def _find(self, wanted: SessionPartition) -> Partition | None:
        topic = wanted.topic
        if isinstance(topic, str):
            return self._services.replicas.find(topic, wanted.index)
        return self._services.replicas.find_by_id(topic, wanted.index)

    def _read(self) -> tuple[list[PartitionRead], int, bool]:
        """Every partition's part, the bytes in all, and whether the client must hear at once."""
        call = self._call
        left = self._bytes_max()
        is_committed_only = call.isolation_level == READ_COMMITTED
        # Who can say its rack can also be served by a follower (KIP-392).
        from_any_replica = self._context.api_version >= RACKS_FROM
        rack = call.rack_id if self._services.replicas.peers.are_followers_read else ""
        reads: list[PartitionRead] = []
        size, must_answer = 0, False
        for wanted in self._wanted:
            partition = self._find(wanted)
            if partition is None:
                code = missing(self._services, wanted.topic, wanted.index)
                reads.append(PartitionRead(error_code=code, aborted=()))
                must_answer = True
                continue
            if rack:
                sent = self._send_elsewhere(partition, wanted, rack)
                if sent is not None:
                    reads.append(sent)
                    must_answer = True
                    continue
            read = read_partition(
                partition,
                offset=wanted.offset,
                leader_epoch=wanted.leader_epoch,
                last_fetched_epoch=wanted.last_fetched_epoch,
                max_bytes=min(wanted.max_bytes, left),
                # One batch goes out even when it is larger than the client asked for (KIP-74), or
                # the client would never get past it.
                at_least_one=size == 0,
                is_committed_only=is_committed_only,
                from_any_replica=from_any_replica,
            )
            if read.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                read = self._doubted(partition, wanted, read)
            if read.cold is not None:
                # How much it will be is known when the disk has answered.
                size += 1
                left -= min(wanted.max_bytes, left)
                must_answer = True
            elif read.data:
                size += len(read.data)
                left -= len(read.data)
            elif read.error_code or read.diverging is not None:
                must_answer = True
            reads.append(read)
        return reads, size, must_answer

    def _doubted(
        self, partition: Partition, wanted: SessionPartition, read: PartitionRead
    ) -> PartitionRead:
        """A leader that was paused for longer than its session is not the leader any more, and the
        last one to hear of it. Clients that send no epoch ask it for what its successor has, and
        called out of range they would begin anew at one end of the log (see KIP-320)."""
        if wanted.offset > partition.log.end_offset and not self._services.lifecycle.is_sure:
            return failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return read

    def _send_elsewhere(
        self, partition: Partition, wanted: SessionPartition, rack: str
    ) -> PartitionRead | None:
        services = self._services
        preferred = nearest_replica(
            partition,
            services.replicas.peers,
            node=services.settings.node_id,
            rack=rack,
            offset=wanted.offset,
        )
        if preferred is None:
            return None
        return read_elsewhere(
            partition,
            preferred,
            wanted.leader_epoch,
            is_committed_only=self._call.isolation_level == READ_COMMITTED,
        )

    def _bytes_max(self) -> int:
        services = self._services
        limit = min(
            services.settings.replication.fetch_bytes_max, services.outgoing.answer_bytes_max()
        )
        return min(self._call.max_bytes, limit)

    # -- Waiting ----------------------------------------------------------------------------------

    def _wait(self, bytes_missing: int) -> asyncio.Future[list[Buffer]]:
        loop = asyncio.get_running_loop()
        self._bytes_missing = bytes_missing
        future: asyncio.Future[list[Buffer]] = loop.create_future()
        self._future = future
        for wanted in self._wanted:
            partition = self._find(wanted)
            if partition is not None:
                partition.watch(self)
                self._watched.append(partition)
        seconds = min(self._call.max_wait_ms, WAIT_MS_MAX) / 1000
        self._timer = loop.call_later(seconds, self._complete)
        future.add_done_callback(self._finished)
        return future

    def progressed(self, partition: Partition, visible_bytes: int) -> None:
        """More can be read; answered after this turn, so that one answer takes all of it."""
        self._bytes_missing -= visible_bytes
        if self._bytes_missing <= 0:
            self.interrupted()

    def interrupted(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._complete)

    def _complete(self) -> None:
        future = self._future
        if future is None or future.done():
            return
        reads, _, _ = self._read()
        answer = self._finish(reads)
        if isinstance(answer, list):
            future.set_result(answer)
        else:
            self._unwatch()
            task = asyncio.ensure_future(answer)
            task.add_done_callback(lambda done: _hand_over(done, future))

    def _finished(self, _: asyncio.Future[list[Buffer]]) -> None:
        """Answered, or the client is gone."""
        self._unwatch()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()

    # -- Answering --------------------------------------------------------------------------------

    def _finish(self, reads: list[PartitionRead]) -> list[Buffer] | Awaitable[list[Buffer]]:
        if any(read.cold is not None for read in reads):
            return self._load(reads)
        return self._encode(reads)

    async def _load(self, reads: list[PartitionRead]) -> list[Buffer]:
        """Some of it lies on the disk only: a thread reads it, and the loop goes on meanwhile."""
        for place, read in enumerate(reads):
            if read.cold is not None:
                try:
                    read.fill(await self._services.log_runner.load(read.cold))
                except KafkaError as error:
                    partition = self._find(self._wanted[place])
                    code = error.code
                    if partition is not None:
                        code = code_for_consumer(partition, code)
                    reads[place] = failed(code)
        return self._encode(reads)

    def _encode(self, reads: list[PartitionRead]) -> list[Buffer]:
        results: list[FetchResult] = []
        leaders: list[tuple[int, int] | None] = []
        served: list[SessionPartition] = []
        session = self._session
        for wanted, read in zip(self._wanted, reads, strict=True):
            if session is not None:
                is_news = bool(
                    read.data or read.error_code or read.diverging or read.preferred >= 0
                )
                changed = wanted.changes(
                    high_watermark=read.high_watermark,
                    log_start_offset=read.log_start_offset,
                    is_news=is_news,
                )
                if self._is_incremental and not changed:
                    continue
                if read.data:
                    served.append(wanted)
            leader = None
            if read.error_code in MOVED:
                leader = self._leader(wanted)
                leaders.append(leader)
            results.append(
                FetchResult(
                    wanted.topic,
                    wanted.index,
                    read.error_code,
                    read.high_watermark,
                    read.last_stable_offset,
                    read.log_start_offset,
                    None
                    if read.aborted is None
                    else [(a.producer_id, a.first_offset) for a in read.aborted],
                    read.data,
                    read.preferred,
                    diverging=read.diverging,
                    leader=leader,
                )
            )
        if session is not None and served:
            session.move_to_end(served)
        return encode_fetch_response(
            self._context.api_version,
            results,
            session_id=NO_SESSION if session is None else session.id,
            node_endpoints=endpoints_of(self._services, leaders, self._context.listener)
            if leaders
            else (),
        )

    def _leader(self, wanted: SessionPartition) -> tuple[int, int] | None:
        """Who leads instead of us, for clients that can read it (KIP-951)."""
        if self._context.api_version < LEADERS_FROM:
            return None
        return leader_of(self._services, wanted.topic, wanted.index)


def _hand_over(done: asyncio.Future[list[Buffer]], future: asyncio.Future[list[Buffer]]) -> None:
    if future.done():
        return
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)
