"""The awaiting side of following: one conversation with each leader, and the disk in between.

A fetcher has one connection and one fetch session to one leader, with one request in flight: the
next one goes out as soon as the data of the last answer is in the logs, and is held by the leader
until there is more. So data moves when it is there, and what is new about whom to follow does not
wait for a held request: that connection is dropped and made anew.

Partitions with flush.before.ack have a fetcher of their own, for each of their requests waits for a
sync, and the others need not.
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
from riverrun.client.stream import StreamConnection, response_body
from riverrun.metadata.image import NO_LEADER
from riverrun.model.errors import KafkaError
from riverrun.model.ids import NodeId
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.replication.follower.backoff import pause_seconds
from riverrun.replication.follower.followed_partition import FollowedPartition, Key
from riverrun.replication.follower.leader_offsets import LeaderOffsetsLookup, LogRange
from riverrun.replication.follower.metrics import Counters, declare
from riverrun.replication.follower.plan import FetchPlan, PlannedFetch, code_of
from riverrun.replication.follower.settings import FollowerSettings
from riverrun.replication.follower.throttle import Throttle
from riverrun.replication.follower.truncation import Truncation, truncation_out_of_range
from riverrun.replication.partition import Partition
from riverrun.replication.replicas import Replicas
from riverrun.storage.log import Log
from riverrun.wire.apis import ApiKey
from riverrun.wire.fetch_client import (
    VERSION_MAX,
    VERSION_MIN,
    FetchAnswer,
    FetchEncoder,
    FetchRequest,
    parse_fetch_response,
)
from riverrun.wire.primitives import MalformedRequest

TURN_SECONDS = 0.005
"""What a fetcher does before others may run."""
SHORT_WAIT_MS = 50
RESTLESS_SECONDS = 2.0
"""After a held request was dropped for the sake of news, requests are held shortly for a while:
more news often follows, and then waits no longer than that."""
OVERDUE_SECONDS = 0.5
"""A leader answers when it has held a request for as long as it may. One that is silent for so much
longer may have lost its power: it comes back without a memory of our connection, which nothing
breaks then, and may lead again long before the connection is given up."""
CORRELATION_ID_MAX = 2**31 - 1
_logger = structlog.get_logger("riverrun.replication")


class Logs(Protocol):
    """What waits for the disk."""

    async def flushed(self, log: Log, offset: int) -> None: ...

    async def truncate(
        self,
        log: Log,
        offset: int,
        *,
        is_wanted: Callable[[], bool],
        start_at: int | None = None,
    ) -> bool: ...


class _Refused(Exception):
    """The leader refused a request as a whole."""


class _FetcherContext(Struct, frozen=True, kw_only=True):
    """What all fetchers of a node share."""

    node_id: NodeId
    logs: Logs
    endpoint_of: Callable[[NodeId], tuple[str, int] | None]
    broker_epoch: Callable[[], int]
    cluster_id: str | None
    settings: FollowerSettings
    clock: Clock
    randomness: Randomness
    throttle: Throttle
    counters: Counters
    lost: Callable[[NodeId], None]


class Fetchers:
    """All that this node fetches. ``update`` after every image, ``run`` until ``stop``."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        replicas: Replicas,
        log_runner: Logs,
        endpoint_of: Callable[[NodeId], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        cluster_id: str | None,
        settings: FollowerSettings,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics | None = None,
        lost: Callable[[NodeId], None] = lambda _leader: None,
    ) -> None:
        """``endpoint_of`` says where a node serves brokers, None while that is not known;
        ``broker_epoch`` is that of our registration, negative while there is none; ``lost`` hears
        of a leader whose connection broke.
        """
        self._node_id = node_id
        self._replicas = replicas
        self.throttle = Throttle(node_id, settings.throttled_rate)
        self._world = _FetcherContext(
            node_id=node_id, logs=log_runner, endpoint_of=endpoint_of, broker_epoch=broker_epoch,
            cluster_id=cluster_id, settings=settings, clock=clock, randomness=randomness,
            throttle=self.throttle, counters=Counters(), lost=lost,
        )  # fmt: skip
        self._fetchers: dict[tuple[NodeId, int, bool], _LeaderFetcher] = {}
        self._owners: dict[Key, _LeaderFetcher] = {}
        self._news = asyncio.Event()
        self._is_stopping = False
        if metrics is not None:
            declare(metrics, self._world.counters, self.following)

    # -- Whom to follow ---------------------------------------------------------------------------

    def update(self, partitions: Iterable[Partition]) -> None:
        """These partitions have another leader, epoch or setting, are new, or are gone."""
        for partition in partitions:
            key: Key = (partition.topic_id, partition.name.partition)
            owner, wanted = self._owners.get(key), self._fetcher_for(partition)
            if owner is not None:
                current = owner.plan.following[key]
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
                wanted.hurry()
        self._news.set()

    def _fetcher_for(self, partition: Partition) -> _LeaderFetcher | None:
        leader = partition.leader
        name = partition.name
        if (
            leader in (NO_LEADER, self._node_id)
            or self._replicas.find_by_id(partition.topic_id, name.partition) is not partition
        ):
            return None
        share = zlib.crc32(str(name).encode()) % self._world.settings.fetchers
        place = (leader, share, partition.log.settings.flush_before_ack)
        fetcher = self._fetchers.get(place)
        if fetcher is None:
            fetcher = self._fetchers[place] = _LeaderFetcher(self._world, leader)
        return fetcher

    def configure(self, partitions: Iterable[Partition], throttled_rate: int | None = None) -> None:
        """Settings of topics changed, or the rate of throttled replicas."""
        if throttled_rate is not None:
            self.throttle.rate = throttled_rate
        self.update(partitions)

    def refetch(self, partition: Partition) -> bool:
        """Repair a damaged replica: drop what is not sound of it, and fetch that from its leader.

        Not while it counts as in sync: it could be chosen to lead with what it no longer has. False
        then, and when nobody leads it; the controller must hear of the damage first.
        """
        key: Key = (partition.topic_id, partition.name.partition)
        owner = self._owners.get(key)
        if owner is None or self._node_id in partition.isr:
            return False
        owner.plan.refetch(key)
        owner.hurry()
        return True

    def lag(self, partition: Partition) -> int | None:
        """Committed records that it lacks; None while that is not known, or it is to be cut."""
        key: Key = (partition.topic_id, partition.name.partition)
        owner = self._owners.get(key)
        following = None if owner is None else owner.plan.following.get(key)
        if following is None or following.is_damaged or following.leader_high_watermark < 0:
            return None
        return following.lag if following.is_valid else None

    # -- Running ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until ``stop``; ends with an error only when the node must stop."""
        async with asyncio.TaskGroup() as group:
            while not self._is_stopping:
                self._news.clear()
                for fetcher in self._fetchers.values():
                    if fetcher.task is None and fetcher.plan.following:
                        fetcher.task = group.create_task(fetcher.run(), name="fetcher")
                await self._news.wait()
            for fetcher in self._fetchers.values():
                if fetcher.task is not None:
                    fetcher.task.cancel()

    async def stop(self) -> None:
        """Fetch nothing more; ``run`` ends."""
        self._is_stopping = True
        self._news.set()
        tasks = [f.task for f in self._fetchers.values() if f.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- Looking ----------------------------------------------------------------------------------

    def following(self) -> Iterable[FollowedPartition]:
        for fetcher in self._fetchers.values():
            yield from fetcher.plan.following.values()


class _LeaderFetcher:
    """One conversation with one leader."""

    def __init__(self, world: _FetcherContext, leader: NodeId) -> None:
        self._world = world
        self._leader = leader
        self._clock = world.clock
        self.plan = FetchPlan(
            world.settings,
            randomness=world.randomness,
            throttle=world.throttle,
            counters=world.counters,
        )
        self.task: asyncio.Task[None] | None = None
        self._connection: StreamConnection | None = None
        self._correlation_id = 0
        self._attempts = 0
        self._wake = asyncio.Event()
        self._held_until = 0.0
        self._restless_until = 0.0
        self._is_hurried = False
        self._reason = ""

    def hurry(self) -> None:
        """There is something new to ask for."""
        self._wake.set()
        self._attempts = 0
        now = self._clock.monotonic()
        connection = self._connection
        if connection is None or not connection.is_idle:
            return
        is_held_long = self._held_until - now > SHORT_WAIT_MS / 1000
        is_overdue = now - self._held_until > OVERDUE_SECONDS
        if is_overdue or (is_held_long and now >= self._restless_until):
            self._is_hurried = True
            self._restless_until = now + RESTLESS_SECONDS
            connection.abort()

    # -- The conversation -------------------------------------------------------------------------

    async def run(self) -> None:
        """As long as there is anything to follow."""
        try:
            while self.plan.following:
                self._wake.clear()
                try:
                    await self._converse()
                except (OSError, UnsupportedApi, MalformedRequest, _Refused) as error:
                    self.plan.session.restart()
                    if self._is_hurried:
                        self._is_hurried = False
                        continue
                    if isinstance(error, ConnectionResetError | ConnectionRefusedError):
                        self._world.lost(self._leader)
                    await self._back_off(str(error))
        finally:
            self.task = None

    async def _back_off(self, reason: str) -> None:
        if reason != self._reason:
            _logger.info("leader cannot be fetched from", leader=self._leader, reason=reason)
        self._reason = reason
        longest = self._world.settings.backoff_ms / 1000
        pause = pause_seconds(self._attempts, longest, self._world.randomness)
        self._attempts += 1
        await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        """Or until there is something new to follow."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _converse(self) -> None:
        world, plan = self._world, self.plan
        endpoint = world.endpoint_of(self._leader)
        if endpoint is None:
            raise ConnectionError(f"the address of node {self._leader} is not known")
        if world.broker_epoch() < 0:
            raise ConnectionError("this node is not registered yet")
        timeout_ms = world.settings.socket_timeout_ms
        connection = await StreamConnection.connect(
            *endpoint,
            client_id=f"follower-{world.node_id}",
            timeout_s=(timeout_ms + world.settings.wait_max_ms) / 1000,
            connect_timeout_s=timeout_ms / 1000,
        )
        try:
            version = connection.version_of(ApiKey.FETCH, VERSION_MIN, VERSION_MAX)
            encoder = FetchEncoder(version, connection.client_id, world.cluster_id)
            while plan.following:
                if plan.diverged or plan.out_of_range:
                    await self._cut(connection)
                while unsynced := plan.unsynced():
                    await self._sync(unsynced)
                ask = plan.ask(self._clock.monotonic())
                if ask is None:
                    await self._wait_for_due(connection)
                else:
                    answer = await self._fetch(connection, encoder, ask)
                    await self._take(answer)
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
        self, connection: StreamConnection, encoder: FetchEncoder, ask: PlannedFetch
    ) -> FetchAnswer:
        world, settings = self._world, self._world.settings
        now = self._clock.monotonic()
        wait_ms = ask.max_wait_ms
        if now < self._restless_until:
            wait_ms = min(wait_ms, SHORT_WAIT_MS)
        self._correlation_id = correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX
        request = FetchRequest(
            world.node_id, world.broker_epoch(), wait_ms, settings.bytes_min,
            settings.response_bytes_max, ask.session_id, ask.session_epoch,
        )  # fmt: skip
        connection.send(encoder.encode(correlation_id, request, ask.wanted, ask.forgotten))
        world.counters.requests.value += 1
        self._held_until = now + wait_ms / 1000
        self._connection = connection
        try:
            frame = await connection.receive()
        finally:
            self._connection = None
        at = response_body(frame, correlation_id, is_flexible=True)
        answer = parse_fetch_response(frame, at, encoder.version)
        self._attempts, self._reason = 0, ""
        if not answer.results:
            connection.shrink()
        return answer

    async def _take(self, answer: FetchAnswer) -> None:
        if answer.error_code:
            if self.plan.session.refused(answer.error_code):
                return
            raise _Refused(f"the leader answered {code_of(answer.error_code).name}")
        clock = self._clock
        began = clock.monotonic()
        for _ in self.plan.take(answer, began):
            if clock.monotonic() - began > TURN_SECONDS:
                await asyncio.sleep(0)
                began = clock.monotonic()

    # -- What waits for the disk ------------------------------------------------------------------

    async def _sync(self, unsynced: list[FollowedPartition]) -> None:
        """All at once: they share the threads that sync."""

        async def sync(following: FollowedPartition) -> None:
            try:
                await self._world.logs.flushed(following.log, following.log.end_offset)
            except KafkaError as error:
                # Also when the log is offline: else it would be found unsynced again at once, and
                # the loop would never turn.
                self.plan.fail(following, self._clock.monotonic(), str(error))

        if len(unsynced) == 1:
            await sync(unsynced[0])
        else:
            async with asyncio.TaskGroup() as group:
                for following in unsynced:
                    group.create_task(sync(following))

    async def _cut(self, connection: StreamConnection) -> None:
        """Make logs agree with the leader's before anything is fetched for them."""
        plan = self.plan
        if plan.out_of_range:
            await self._look_up(connection)
        for following, cut in list(plan.diverged.items()):
            await self._cut_one(following, cut)

    async def _cut_one(self, following: FollowedPartition, cut: Truncation) -> None:
        plan, log = self.plan, following.log
        if not plan.is_current(following):
            plan.cut_done(following)
            return
        before = (log.end_offset, log.start_offset, log.epochs.latest)
        try:
            await self._world.logs.truncate(
                log,
                cut.end,
                is_wanted=lambda: plan.is_current(following),
                start_at=cut.restart,
            )
        except (KafkaError, OSError) as error:
            plan.fail(following, self._clock.monotonic(), str(error))
            return
        after = (log.end_offset, log.start_offset, log.epochs.latest)
        if after == before and plan.is_current(following):
            # To ask again at once would give the same answer for ever.
            plan.delay(following, self._clock.monotonic(), "nothing to cut where histories differ")
            return
        # An epoch in which nothing was written is forgotten in silence: no record was lost.
        if after[:2] != before[:2]:
            self._world.counters.truncations.value += 1
            _logger.info(
                "replica cut", partition=str(following.partition.name), leader=self._leader,
                epoch=following.leader_epoch, end=after[0], was=before[0], start=after[1],
            )  # fmt: skip
        plan.cut_done(following)

    async def _look_up(self, connection: StreamConnection) -> None:
        """Ask where the leader's logs begin and end that we are outside of."""
        plan, now = self.plan, self._clock.monotonic()
        asked = list(plan.out_of_range)
        look_up = LeaderOffsetsLookup(self._world.node_id, asked, connection.versions)
        for frame in look_up.requests(connection.client_id):
            connection.send(frame)
            look_up.answered(bytes(await connection.receive()))
        for following in asked:
            found = look_up.found.get(following.key)
            if following not in plan.out_of_range:
                continue  # followed no more
            if not isinstance(found, LogRange):
                plan.delay(following, now, f"no offsets from the leader: {found}")
                continue
            cut = truncation_out_of_range(
                following.log, found.start, found.end, following.leader_epoch
            )
            if following.is_damaged:
                cut = Truncation(found.start, found.start)
            if cut is None:
                # It has moved since; ask for the same again, but not at once.
                plan.delay(following, now, "out of the leader's range")
            else:
                plan.out_of_range.pop(following)
                plan.diverged[following] = cut
