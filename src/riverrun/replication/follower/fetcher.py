"""Fetches partitions from their leaders.

A fetcher has one connection and one fetch session to one leader, with one request in flight. It
sends the next fetch once the records of the last response are in the logs. The leader holds a fetch
until there are new records (long poll). When the followed partitions change, the fetcher does not
wait for the long poll: it drops the connection and connects again.

Partitions with flush.before.ack have a fetcher of their own. Each of their fetches waits for a
flush, which would delay the other partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog
from msgspec import Struct

from riverrun.client.connection import UnsupportedApi
from riverrun.client.security import SecuritySource, no_security
from riverrun.client.stream import StreamConnection, response_body
from riverrun.metadata.image import NO_LEADER
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.aio import Yielder
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.replication.follower.followed_partition import FollowedPartition, Key
from riverrun.replication.follower.leader_offsets import LeaderOffsetsLookup, LogRange
from riverrun.replication.follower.metrics import Counters, declare
from riverrun.replication.follower.plan import FetchPlan, PlannedFetch
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.follower.truncation import Truncation, truncation_out_of_range
from riverrun.replication.isr import IsrLimits
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.replication.throttle import Throttle, follower_list
from riverrun.storage.log import Log
from riverrun.wire.apis import ApiKey
from riverrun.wire.fetch_client import (
    VERSION_MAX,
    VERSION_MIN,
    FetchEncoder,
    FollowerFetchRequest,
    FollowerFetchResponse,
    parse_fetch_response,
)
from riverrun.wire.primitives import MalformedRequest

SHORT_WAIT_MS = 50
SHORT_WAITS_SECONDS = 2.0
"""After cancelling a long poll, use short polls for this time: more changes often follow."""
OVERDUE_SECONDS = 0.5
"""A long poll that exceeds its time by this much is overdue. The leader may have lost power and
restarted without our connection, and nothing resets the connection then. It may lead again long
before the request times out."""
CORRELATION_ID_MAX = 2**31 - 1
_logger = structlog.get_logger("riverrun.replication")


class Logs(Protocol):
    """Operations on logs that wait for the disk."""

    async def flushed(self, log: Log, offset: int) -> None: ...

    async def truncate(
        self,
        log: Log,
        offset: int,
        *,
        is_wanted: Callable[[], bool],
        start_at: int | None = None,
    ) -> bool: ...


class _FetchRejected(Exception):
    """The leader rejected the whole fetch."""


class _FetcherContext(Struct, frozen=True, kw_only=True):
    """Dependencies that all fetchers of a node share."""

    node_id: NodeId
    logs: Logs
    endpoint_of: Callable[[NodeId], tuple[str, int] | None]
    broker_epoch: Callable[[], int]
    cluster_id: str | None
    settings: FollowerSettings
    clock: Clock
    randomness: Randomness
    throttle: Throttle
    limits: IsrLimits
    counters: Counters
    lost: Callable[[NodeId], None]
    security: SecuritySource


class Fetchers:
    """All fetchers of a node. Call ``update`` after every image; ``run`` fetches until ``stop``."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        replicas: Replicas,
        log_manager: Logs,
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        cluster_id: str | None,
        settings: FollowerSettings,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics | None = None,
        lost: Callable[[NodeId], None] = lambda _leader: None,
        security: SecuritySource = no_security,
    ) -> None:
        """``endpoint_of`` returns the address at which a node serves brokers, or None while it is
        unknown. ``broker_epoch`` returns the epoch of our registration, negative without one.
        ``lost`` is called with a leader that reset or refused a connection.
        """
        self._node_id = node_id
        self._replicas = replicas
        self.throttle = Throttle(node_id, settings.throttled_rate, follower_list)
        self._context = _FetcherContext(
            node_id=node_id,
            logs=log_manager,
            endpoint_of=endpoint_of,
            broker_epoch=broker_epoch,
            cluster_id=cluster_id,
            settings=settings,
            clock=clock,
            randomness=randomness,
            throttle=self.throttle,
            limits=replicas.peers.limits,
            counters=Counters(),
            lost=lost,
            security=security,
        )
        self._fetchers: dict[tuple[NodeId, int, bool], _LeaderFetcher] = {}
        self._owners: dict[Key, _LeaderFetcher] = {}
        self._changed = asyncio.Event()
        self._is_stopping = False
        if metrics is not None:
            declare(metrics, self._context.counters, self.followed_partitions)

    def update(self, partitions: Iterable[Partition]) -> None:
        """Call with partitions that are new, removed, or have a new leader, epoch or setting."""
        for partition in partitions:
            key: Key = (partition.topic_id, partition.name.partition)
            owner, wanted = self._owners.get(key), self._fetcher_for(partition)
            if owner is not None:
                current = owner.plan.partitions[key]
                if (
                    owner is wanted
                    and current.partition is partition
                    and current.leader_epoch == partition.leader_epoch
                ):
                    continue
                owner.plan.unfollow(key)
                del self._owners[key]
            if wanted is not None:
                wanted.plan.follow(partition)
                self._owners[key] = wanted
                wanted.interrupt()
        self._changed.set()

    def _fetcher_for(self, partition: Partition) -> _LeaderFetcher | None:
        leader = partition.leader
        name = partition.name
        if (
            leader in (NO_LEADER, self._node_id)
            or self._replicas.find_by_id(partition.topic_id, name.partition) is not partition
        ):
            return None
        share = zlib.crc32(str(name).encode()) % self._context.settings.fetchers
        place = (leader, share, partition.log.settings.flush_before_ack)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = _LeaderFetcher(self._context, leader)
        return fetcher

    def refetch(self, partition: Partition) -> bool:
        """Repair a damaged replica: truncate the damaged records and fetch them from the leader.

        Returns False, and changes nothing, if the replica has no leader or is in the ISR. A replica
        in the ISR could be elected without the records that it acknowledged, so the damage must
        first be reported to the controller.
        """
        key: Key = (partition.topic_id, partition.name.partition)
        owner = self._owners.get(key)
        if owner is None or self._node_id in partition.isr:
            return False
        owner.plan.refetch(key)
        owner.interrupt()
        return True

    def lag(self, partition: Partition) -> int | None:
        """Committed records that the replica lacks; None if unknown or before a truncation."""
        key: Key = (partition.topic_id, partition.name.partition)
        owner = self._owners.get(key)
        followed = None if owner is None else owner.plan.partitions.get(key)
        if followed is None or followed.is_damaged or followed.leader_high_watermark < 0:
            return None
        return followed.lag if followed.is_valid else None

    async def run(self) -> None:
        """Fetch until ``stop``. Raises only errors that must stop the node."""
        async with asyncio.TaskGroup() as group:
            while not self._is_stopping:
                self._changed.clear()
                for fetcher in self._fetchers.values():
                    if fetcher.task is None and fetcher.plan.partitions:
                        fetcher.task = group.create_task(fetcher.run(), name="fetcher")
                await self._changed.wait()
            for fetcher in self._fetchers.values():
                if fetcher.task is not None:
                    fetcher.task.cancel()

    async def stop(self) -> None:
        """Stop fetching and end ``run``."""
        self._is_stopping = True
        self._changed.set()
        tasks = [f.task for f in self._fetchers.values() if f.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def followed_partitions(self) -> Iterable[FollowedPartition]:
        for fetcher in self._fetchers.values():
            yield from fetcher.plan.partitions.values()


class _LeaderFetcher:
    """One connection to one leader, and the partitions fetched over it."""

    def __init__(self, context: _FetcherContext, leader: NodeId) -> None:
        self._context = context
        self._leader = leader
        self._clock = context.clock
        self.plan = FetchPlan(
            context.settings,
            node_id=context.node_id,
            randomness=context.randomness,
            throttle=context.throttle,
            limits=context.limits,
            counters=context.counters,
        )
        self.task: asyncio.Task[None] | None = None
        self._connection: StreamConnection | None = None
        self._correlation_id = 0
        self._attempts = 0
        self._wake = asyncio.Event()
        self._held_until = 0.0
        self._short_waits_until = 0.0
        self._was_interrupted = False
        self._last_error = ""

    def interrupt(self) -> None:
        """The followed partitions changed: cancel a long poll."""
        self._wake.set()
        self._attempts = 0
        now = self._clock.monotonic()
        connection = self._connection
        if connection is None or not connection.is_idle:
            return
        is_held_long = self._held_until - now > SHORT_WAIT_MS / 1000
        is_overdue = now - self._held_until > OVERDUE_SECONDS
        if is_overdue or (is_held_long and now >= self._short_waits_until):
            self._was_interrupted = True
            self._short_waits_until = now + SHORT_WAITS_SECONDS
            connection.abort()

    async def run(self) -> None:
        """Fetch while there are partitions to follow."""
        try:
            while self.plan.partitions:
                self._wake.clear()
                try:
                    await self._fetch_until_error()
                except (OSError, UnsupportedApi, MalformedRequest, _FetchRejected) as error:
                    self.plan.session.restart()
                    if self._was_interrupted:
                        self._was_interrupted = False
                        continue
                    if isinstance(error, ConnectionResetError | ConnectionRefusedError):
                        self._context.lost(self._leader)
                    await self._back_off(str(error))
        finally:
            self.task = None

    async def _back_off(self, error: str) -> None:
        if error != self._last_error:
            _logger.info("fetch from leader failed", leader=self._leader, error=error)
        self._last_error = error
        self._attempts += 1
        pause = self._context.settings.backoff.jittered(self._attempts, self._context.randomness)
        await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        """Sleep, or return early if the followed partitions change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _fetch_until_error(self) -> None:
        context, plan = self._context, self.plan
        endpoint = context.endpoint_of(self._leader)
        if endpoint is None:
            raise ConnectionError(f"the address of node {self._leader} is not known")
        if context.broker_epoch() < 0:
            raise ConnectionError("this node is not registered yet")
        timeout_ms = context.settings.socket_timeout_ms
        connection = await StreamConnection.connect(
            *endpoint,
            client_id=f"follower-{context.node_id}",
            timeout_s=(timeout_ms + context.settings.wait_max_ms) / 1000,
            connect_timeout_s=timeout_ms / 1000,
            security=context.security(),
        )
        try:
            version = connection.version_of(ApiKey.FETCH, at_least=VERSION_MIN, at_most=VERSION_MAX)
            encoder = FetchEncoder(version, connection.client_id, context.cluster_id)
            while plan.partitions:
                if connection.must_log_in:
                    await connection.log_in()
                if plan.diverged or plan.out_of_range:
                    await self._truncate(connection)
                while unflushed := plan.unflushed():
                    await self._flush(unflushed)
                planned = plan.next_fetch(self._clock.monotonic())
                if planned is None:
                    await self._wait_for_due(connection)
                else:
                    response = await self._fetch(connection, encoder, planned)
                    await self._apply(response)
        finally:
            self._connection = None
            connection.abort()

    async def _wait_for_due(self, connection: StreamConnection) -> None:
        self._wake.clear()
        due = self.plan.next_due
        connection.shrink()
        if due is None:
            await self._wake.wait()
        else:
            await self._sleep(max(due - self._clock.monotonic(), 0))

    async def _fetch(
        self, connection: StreamConnection, encoder: FetchEncoder, planned: PlannedFetch
    ) -> FollowerFetchResponse:
        context, settings = self._context, self._context.settings
        now = self._clock.monotonic()
        wait_ms = planned.max_wait_ms
        if now < self._short_waits_until:
            wait_ms = min(wait_ms, SHORT_WAIT_MS)
        self._correlation_id = correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        request = FollowerFetchRequest(
            context.node_id,
            context.broker_epoch(),
            wait_ms,
            settings.bytes_min,
            settings.response_bytes_max,
            planned.session_id,
            planned.session_epoch,
        )
        connection.send(encoder.encode(correlation_id, request, planned.wanted, planned.forgotten))
        context.counters.requests.value += 1
        self._held_until = now + wait_ms / 1000
        self._connection = connection
        try:
            frame = await connection.receive()
        finally:
            self._connection = None
        at = response_body(frame, correlation_id, is_flexible=True)
        response = parse_fetch_response(frame, at, encoder.version)
        self._attempts, self._last_error = 0, ""
        if not response.results:
            connection.shrink()
        return response

    async def _apply(self, response: FollowerFetchResponse) -> None:
        if response.error_code:
            if self.plan.session.rejected(response.error_code):
                return
            code = ErrorCode(response.error_code)
            raise _FetchRejected(f"the leader responded with {code.name}")
        steps = self.plan.apply_response(response, self._clock.monotonic())
        await Yielder(self._clock).run(steps)

    async def _flush(self, unflushed: list[FollowedPartition]) -> None:
        """Flush concurrently; the threads of the data directory are shared."""

        async def flush(followed: FollowedPartition) -> None:
            try:
                await self._context.logs.flushed(followed.log, followed.log.end_offset)
            except KafkaError as error:
                # This includes an offline log. Otherwise it would be unflushed again at once, and
                # the fetcher would spin without yielding.
                self.plan.fail(followed, self._clock.monotonic(), str(error))

        if len(unflushed) == 1:
            await flush(unflushed[0])
        else:
            async with asyncio.TaskGroup() as group:
                for followed in unflushed:
                    group.create_task(flush(followed))

    async def _truncate(self, connection: StreamConnection) -> None:
        """Truncate logs to the common prefix with the leader before they are fetched again."""
        plan = self.plan
        if plan.out_of_range:
            await self._look_up_offsets(connection)
        for followed, truncation in list(plan.diverged.items()):
            await self._truncate_one(followed, truncation)

    async def _truncate_one(self, followed: FollowedPartition, truncation: Truncation) -> None:
        plan, log = self.plan, followed.log
        if not plan.is_current(followed):
            plan.truncation_done(followed)
            return
        before = (log.end_offset, log.start_offset, log.epochs.latest)
        try:
            await self._context.logs.truncate(
                log,
                truncation.end,
                is_wanted=lambda: plan.is_current(followed),
                start_at=truncation.restart,
            )
        except (KafkaError, OSError) as error:
            plan.fail(followed, self._clock.monotonic(), str(error))
            return
        after = (log.end_offset, log.start_offset, log.epochs.latest)
        if after == before and plan.is_current(followed):
            # Without a delay, the same response would repeat in a tight loop.
            plan.delay(followed, self._clock.monotonic(), "logs diverge, but nothing was truncated")
            return
        # An epoch without records was removed: no record is lost, so it is not logged.
        if after[:2] != before[:2]:
            self._context.counters.truncations.value += 1
            _logger.info(
                "replica truncated",
                partition=str(followed.partition.name),
                leader=self._leader,
                epoch=followed.leader_epoch,
                end=after[0],
                was=before[0],
                start=after[1],
            )
        plan.truncation_done(followed)

    async def _look_up_offsets(self, connection: StreamConnection) -> None:
        """Request the leader's log start and end offsets for partitions that are out of range."""
        plan, now = self.plan, self._clock.monotonic()
        partitions = list(plan.out_of_range)
        lookup = LeaderOffsetsLookup(self._context.node_id, partitions, connection.versions)
        for frame in lookup.requests(connection.client_id):
            connection.send(frame)
            lookup.add_response(bytes(await connection.receive()))
        for followed in partitions:
            found = lookup.found.get(followed.key)
            if followed not in plan.out_of_range:
                continue  # No longer followed.
            if not isinstance(found, LogRange):
                plan.delay(followed, now, f"no offsets from the leader: {found}")
                continue
            truncation = truncation_out_of_range(
                followed.log, found.start, found.end, followed.leader_epoch
            )
            if followed.is_damaged:
                truncation = Truncation(found.start, found.start)
            if truncation is None:
                # The leader's log has moved meanwhile: fetch again, but not at once.
                plan.delay(followed, now, "offset out of range")
            else:
                plan.out_of_range.pop(followed)
                plan.diverged[followed] = truncation
