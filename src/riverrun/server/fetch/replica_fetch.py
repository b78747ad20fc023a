"""Fetch by followers: how records are replicated, and how the leader learns which replica has them.

A follower's fetch reads up to the log end offset, acknowledges records by its offsets, and is woken
by appends. From v15 on a follower names its broker epoch, and only the registered one counts
(KIP-903). Other fetches with a replica id are refused: any client could claim to be replica 2 and
take over its session. A follower that has just registered retries until we have its registration.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.model.settings import SECOND_MS
from riverrun.replication.partition import Partition
from riverrun.replication.peers import UNREGISTERED
from riverrun.replication.reading import PartitionRead, failed, read_for_replica
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import leader_of, missing
from riverrun.server.fetch.long_poll import (
    LEADERS_FROM,
    Entry,
    LongPoll,
    Response,
    results_of,
    serve,
)
from riverrun.server.fetch.replica_sessions import (
    ReplicaPartition,
    ReplicaSession,
    create_session,
)
from riverrun.server.fetch.session_cache import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from riverrun.wire.fetch import (
    REPLICA_STATE_FROM,
    FetchCall,
    FetchResult,
    encode_fetch_response,
)

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices


def fetch_for_replica(
    services: BrokerServices, context: RequestContext, call: FetchCall
) -> Response | Awaitable[Response]:
    if not services.access.permits_cluster(context, AclOperation.CLUSTER_ACTION):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        denied = [FetchResult(one.topic, one.partition, code) for one in call.partitions]
        return encode_fetch_response(context.api_version, denied)
    node, broker_epoch = NodeId(call.replica_id), call.replica_epoch
    registered = services.replicas.peers.epoch_of(node)
    if (
        context.api_version < REPLICA_STATE_FROM
        or registered == UNREGISTERED
        or broker_epoch != registered
    ):
        return _refuse(services, context, call)
    sessions = services.fetch_sessions.replicas
    is_incremental = False
    if call.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        if call.session_id != NO_SESSION:
            sessions.close(call.session_id, (node, broker_epoch))
        if call.session_epoch == FINAL_EPOCH:
            session = ReplicaSession(NO_SESSION, node, broker_epoch)
        else:
            session = create_session(sessions, node, broker_epoch)
    else:
        session = sessions.resume(call.session_id, call.session_epoch, (node, broker_epoch))
        is_incremental = True
    if session.waiting is not None:
        # The follower did not wait for the response. The next response has the news.
        session.waiting.wake()
    session.contact.fetched_at = services.clock.monotonic()
    session.update(call.partitions, call.forgotten)
    return serve(FollowerFetch(services, context, call, session, is_incremental=is_incremental))


def _refuse(services: BrokerServices, context: RequestContext, call: FetchCall) -> Response:
    """Respond to a stale incarnation, or to a client that is no replica."""
    version = context.api_version
    results = [
        FetchResult(
            wanted.topic,
            wanted.partition,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            # Followers get the leader's id (KIP-951), not its address: they have all brokers.
            leader=leader_of(services, wanted.topic, wanted.partition)
            if version >= LEADERS_FROM
            else None,
        )
        for wanted in call.partitions
    ]
    return encode_fetch_response(version, results)


class FollowerFetch:
    """One fetch of a follower. It reads only the partitions of its session that have news."""

    __slots__ = (
        "_call",
        "_context",
        "_is_incremental",
        "_session",
        "entries",
        "has_cold",
        "services",
        "wait_ms",
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
        self.services = services
        # The first response of a session leaves at once: it brings the high watermarks.
        is_first = not is_incremental and session.id != NO_SESSION
        self.wait_ms = 0 if is_first else call.max_wait_ms
        self.entries: list[Entry[ReplicaPartition]] = []
        self.has_cold = False
        self._context = context
        self._call = call
        self._session = session
        self._is_incremental = is_incremental

    # Reading

    def read(self) -> bool:
        session, call = self._session, self._call
        left = min(call.max_bytes, self.services.send_memory.response_bytes_max())
        news, session.news = session.news, {}
        entries = self.entries = []
        size, is_enough = 0, False
        for wanted in news:
            if left <= 0 and size and not wanted.is_moved:
                session.news[wanted] = None  # the next response begins with it
                continue
            read = self._read(wanted, min(wanted.max_bytes, left), at_least_one=size == 0)
            if read.cold is not None:
                size += 1
                left -= min(wanted.max_bytes, left)
                is_enough = self.has_cold = True
            elif read.data:
                size += len(read.data)
                left -= len(read.data)
            elif read.error_code or read.diverging is not None:
                is_enough = True
            else:
                if left <= 0:
                    session.news[wanted] = None
                is_enough |= self._is_urgent(wanted, read)
            entries.append((wanted, read))
        return is_enough or size >= call.min_bytes

    def read_again(self, poll: LongPoll, *, is_due: bool) -> bool:
        if self._session.waiting is not poll:
            self.entries = []  # a newer request of the follower gets the news
            return True
        if self.read() or is_due:
            return True
        self._put_back()
        return False

    def _is_urgent(self, wanted: ReplicaPartition, read: PartitionRead) -> bool:
        """Whether new offsets cannot wait for the next records."""
        if 0 <= wanted.log_start_offset != read.log_start_offset:
            return True  # a DeleteRecords request waits for the followers
        peers = self.services.replicas.peers
        return peers.are_followers_read and 0 <= wanted.high_watermark != read.high_watermark

    def _read(
        self, wanted: ReplicaPartition, max_bytes: int, *, at_least_one: bool
    ) -> PartitionRead:
        partition = wanted.partition
        if partition is None or partition.is_closed:
            topic, index = wanted.topic, wanted.index
            assert not isinstance(topic, str), f"{topic} by name in a version with topic ids"
            partition = self.services.replicas.find_by_id(topic, index)
            wanted.watch(partition)
            if partition is None:
                return failed(missing(self.services, topic, index))
        if not self._pause_seconds(partition, wanted):
            return self._read_open(partition, wanted, max_bytes, at_least_one=at_least_one)
        read = self._read_open(partition, wanted, 0, at_least_one=False)
        # The fetch itself may show that the replica has nearly caught up. Then writes wait for it.
        pause = self._pause_seconds(partition, wanted)
        if pause:
            self._session.news[wanted] = None
            self.wait_ms = min(self.wait_ms, int(pause * SECOND_MS) + 1)
        elif not read.error_code and read.diverging is None:
            read = self._read_open(partition, wanted, max_bytes, at_least_one=at_least_one)
        return read

    def _read_open(
        self, partition: Partition, wanted: ReplicaPartition, max_bytes: int, *, at_least_one: bool
    ) -> PartitionRead:
        is_first, wanted.is_moved = wanted.is_moved, False
        return read_for_replica(
            partition,
            self._session.node,
            wanted.fetch,
            contact=self._session.contact,
            max_bytes=max_bytes,
            at_least_one=at_least_one,
            is_first=is_first,
        )

    def _pause_seconds(self, partition: Partition, wanted: ReplicaPartition) -> float:
        """The time for which the partition gets no records; 0 if it may be read. Meanwhile it stays
        news. A replica that has all committed records, or nearly, is not delayed."""
        throttle = self.services.leader_throttle
        if (
            not partition.log.settings.leader_throttled_replicas
            or wanted.fetch.offset >= partition.log.high_watermark
            or not throttle.applies_to(partition, self._session.node)
        ):
            return 0.0
        return throttle.pause_seconds(self.services.clock.monotonic())

    def _charge(self, wanted: ReplicaPartition, size: int) -> None:
        """Count records that are sent to a replica that catches up."""
        partition, node = wanted.partition, self._session.node
        if partition is None or not size:
            return
        if node in partition.image.adding:
            self.services.replicas.peers.reassigned_bytes.value += size
        throttle = self.services.leader_throttle
        if partition.log.settings.leader_throttled_replicas and throttle.applies_to(
            partition, node
        ):
            throttle.spend(size, self.services.clock.monotonic())

    def _put_back(self) -> None:
        """The entries are not sent, so they are still news."""
        news = self._session.news
        for wanted, read in self.entries:
            if (
                read.data
                or read.high_watermark != wanted.high_watermark
                or read.log_start_offset != wanted.log_start_offset
            ):
                news[wanted] = None

    # Waiting

    def watch(self, poll: LongPoll) -> None:
        self._put_back()
        self._session.waiting = poll

    def unwatch(self, poll: LongPoll) -> None:
        session = self._session
        if session.waiting is poll:
            session.waiting = None
        if session.id == NO_SESSION:
            session.close()

    # The response

    def load_error(self, wanted: ReplicaPartition, code: ErrorCode) -> ErrorCode:
        return code

    def encode(self) -> Response:
        session, version = self._session, self._context.api_version
        results, with_news, _ = results_of(
            self.services, version, self.entries, is_incremental=self._is_incremental
        )
        for wanted, read in with_news:
            session.sent.append(wanted)
            self._charge(wanted, len(read.data))
        if session.id == NO_SESSION:
            session.close()
        return encode_fetch_response(version, results, session_id=session.id)
