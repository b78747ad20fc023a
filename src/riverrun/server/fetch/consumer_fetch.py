"""Fetch by consumers: committed records, from the leader or from a follower (KIP-392)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.settings import INT_MAX
from riverrun.replication.partition import Partition
from riverrun.replication.readable_bytes import NewlyReadable
from riverrun.replication.reading import (
    PartitionRead,
    code_for_consumer,
    failed,
    nearest_replica,
    read_elsewhere,
    read_partition,
)
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import endpoints_of, missing, topic_name
from riverrun.server.fetch.consumer_sessions import ConsumerPartition, ConsumerSession
from riverrun.server.fetch.long_poll import Entry, LongPoll, Response, results_of, serve
from riverrun.server.fetch.session_cache import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from riverrun.wire.fetch import TOPIC_IDS_FROM, FetchCall, encode_fetch_response

if TYPE_CHECKING:
    from riverrun.server.services import BrokerServices

READ_COMMITTED: Final = 1
RACKS_FROM: Final = 11


def fetch_for_consumer(
    services: BrokerServices, context: RequestContext, call: FetchCall
) -> Response | Awaitable[Response]:
    sessions = services.fetch_sessions.consumers
    uses_ids = context.api_version >= TOPIC_IDS_FROM
    is_incremental = call.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH)
    session: ConsumerSession | None = None
    if is_incremental:
        session = sessions.resume(call.session_id, call.session_epoch, None)
        if session.uses_topic_ids != uses_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(call.partitions, call.forgotten)
    else:
        if call.session_id != NO_SESSION:
            sessions.close(call.session_id, None)
        if call.session_epoch == INITIAL_EPOCH:
            session = sessions.create(lambda session_id: ConsumerSession(session_id, uses_ids))
        if session is not None:
            session.update(call.partitions, ())
    if session is None:
        wanted = [ConsumerPartition(partition) for partition in call.partitions]
    else:
        wanted = list(session.partitions.values())
    return serve(
        ConsumerFetch(services, context, call, session, wanted, is_incremental=is_incremental)
    )


class ConsumerFetch:
    """One fetch of a consumer. While it waits, it counts the bytes that become readable."""

    __slots__ = (
        "_began",
        "_busy_seconds",
        "_bytes_missing",
        "_call",
        "_context",
        "_is_counted",
        "_is_incremental",
        "_partitions",
        "_poll",
        "_session",
        "_wanted",
        "_watched",
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
        session: ConsumerSession | None,
        wanted: list[ConsumerPartition],
        *,
        is_incremental: bool,
    ) -> None:
        self.services = services
        self._began = services.clock.monotonic()
        self.wait_ms = call.max_wait_ms if wanted else 0
        self.entries: list[Entry[ConsumerPartition]] = []
        self.has_cold = False
        self._context = context
        self._call = call
        self._session = session
        self._wanted = wanted
        self._is_incremental = is_incremental
        quotas = services.quotas
        self._is_counted = quotas.is_active and not quotas.is_exempt(context)
        self._busy_seconds = 0.0
        self._partitions: list[Partition | None] = []
        """The replicas of the entries; None for those that are not here."""
        self._watched: list[Partition] = []
        self._poll: LongPoll | None = None
        self._bytes_missing = 0

    # Reading

    def read(self) -> bool:
        if not self._is_counted:
            return self._read(INT_MAX)
        clock = self.services.clock
        began = clock.monotonic()
        is_enough = self._read(self.services.quotas.fetch_bytes_max(self._context))
        self._busy_seconds += clock.monotonic() - began
        return is_enough

    def _read(self, bytes_max: int) -> bool:
        call, services = self._call, self.services
        left = min(
            call.max_bytes,
            bytes_max,
            services.settings.replication.fetch_bytes_max,
            services.send_memory.response_bytes_max(),
        )
        # A response cannot be larger than our own limit, so that many bytes are enough.
        bytes_min = min(call.min_bytes, left)
        is_committed_only = call.isolation_level == READ_COMMITTED
        # A follower may serve clients that can name their rack (KIP-392).
        from_any_replica = self._context.api_version >= RACKS_FROM
        rack = call.rack_id if services.replicas.peers.are_followers_read else ""
        entries = self.entries = []
        partitions = self._partitions = []
        size, is_enough = 0, False
        is_guarded = services.access.is_enabled
        for wanted in self._wanted:
            is_denied = is_guarded and not self._may_read(wanted)
            partition = None if is_denied else self._find(wanted)
            partitions.append(partition)
            if partition is None:
                code = missing(services, wanted.topic, wanted.index)
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_denied else code
                entries.append((wanted, PartitionRead(error_code=code, aborted=())))
                is_enough = True
                continue
            if rack:
                redirect = self._redirect(partition, wanted, rack)
                if redirect is not None:
                    entries.append((wanted, redirect))
                    is_enough = True
                    continue
            read = read_partition(
                partition,
                offset=wanted.offset,
                leader_epoch=wanted.leader_epoch,
                last_fetched_epoch=wanted.last_fetched_epoch,
                max_bytes=min(wanted.max_bytes, left),
                # The first batch is sent even if it exceeds the client's limits, or the client
                # could never get past it (KIP-74).
                at_least_one=size == 0,
                is_committed_only=is_committed_only,
                from_any_replica=from_any_replica,
            )
            if read.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                read = self._check_leadership(partition, wanted, read)
            if read.cold is not None:
                # The size is known only after the disk was read.
                size += 1
                left -= min(wanted.max_bytes, left)
                is_enough = self.has_cold = True
            elif read.data:
                size += len(read.data)
                left -= len(read.data)
            elif read.error_code or read.diverging is not None:
                is_enough = True
            entries.append((wanted, read))
        self._bytes_missing = bytes_min - size
        return is_enough or size >= bytes_min

    def read_again(self, poll: LongPoll, *, is_due: bool) -> bool:
        self._began = self.services.clock.monotonic()
        self.read()
        return True

    def _may_read(self, wanted: ConsumerPartition) -> bool:
        name = topic_name(self.services, wanted.topic)
        return name is None or self.services.access.permits(
            self._context, AclOperation.READ, ResourceType.TOPIC, name
        )

    def _find(self, wanted: ConsumerPartition) -> Partition | None:
        topic = wanted.topic
        if isinstance(topic, str):
            return self.services.replicas.find(topic, wanted.index)
        return self.services.replicas.find_by_id(topic, wanted.index)

    def _check_leadership(
        self, partition: Partition, wanted: ConsumerPartition, read: PartitionRead
    ) -> PartitionRead:
        """Do not report "out of range" if a newer leader may have the offset.

        A leader that was paused for longer than its session may have a successor. A client that
        sends no epoch would reset its position to one end of the log (see KIP-320).
        """
        if wanted.offset > partition.log.end_offset and not self.services.lifecycle.is_sure:
            return failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return read

    def _redirect(
        self, partition: Partition, wanted: ConsumerPartition, rack: str
    ) -> PartitionRead | None:
        services = self.services
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

    # Waiting

    def watch(self, poll: LongPoll) -> None:
        self._poll = poll
        for wanted in self._wanted:
            partition = self._find(wanted)
            if partition is not None:
                partition.watch(self)
                self._watched.append(partition)

    def unwatch(self, poll: LongPoll) -> None:
        for partition in self._watched:
            partition.unwatch(self)
        self._watched.clear()

    def progressed(self, partition: Partition, readable: NewlyReadable) -> None:
        is_committed_only = self._call.isolation_level == READ_COMMITTED
        self._bytes_missing -= readable.stable if is_committed_only else readable.visible
        if self._bytes_missing <= 0 and self._poll is not None:
            self._poll.wake()

    def interrupted(self) -> None:
        if self._poll is not None:
            self._poll.wake()

    # The response

    def load_error(self, wanted: ConsumerPartition, code: ErrorCode) -> ErrorCode:
        partition = self._find(wanted)
        return code if partition is None else code_for_consumer(partition, code)

    def encode(self) -> Response:
        services, session, version = self.services, self._session, self._context.api_version
        if self._is_counted:
            size = sum(len(read.data) for _, read in self.entries if read.data)
            wait_ms = services.quotas.fetched(self._context, size, self._busy_seconds)
            if wait_ms:
                return self._throttled(wait_ms)
        results, with_news, leaders = results_of(
            services, version, self.entries, is_incremental=self._is_incremental
        )
        self._count()
        if session is not None and with_news:
            session.move_to_end([wanted for wanted, read in with_news if read.data])
        return encode_fetch_response(
            version,
            results,
            session_id=NO_SESSION if session is None else session.id,
            node_endpoints=endpoints_of(services, leaders, self._context.listener)
            if leaders
            else (),
        )

    def _throttled(self, wait_ms: int) -> Response:
        """A response without records, to a consumer above its quota (KIP-219). It cannot begin a
        session, because it has no partitions."""
        session_id = NO_SESSION
        if self._session is not None:
            if self._is_incremental:
                session_id = self._session.id
            else:
                self.services.fetch_sessions.consumers.close(self._session.id, None)
        version = self._context.api_version
        return encode_fetch_response(version, (), session_id=session_id, throttle_ms=wait_ms)

    def _count(self) -> None:
        services = self.services
        services.topics_traffic.fetch_seconds.observe(services.clock.monotonic() - self._began)
        for (_, read), partition in zip(self.entries, self._partitions, strict=True):
            if partition is not None and read.data:
                traffic = self.services.topics_traffic[partition.name.topic]
                traffic.fetch_requests += 1
                traffic.bytes_out += len(read.data)
            elif partition is not None and read.error_code:
                self.services.topics_traffic[partition.name.topic].fetch_failures += 1
