"""Members that use the consumer protocol in one life and the classic one in the next.

The group is converted back and forth: the first member of the consumer protocol upgrades it, and
the last one downgrades it when it leaves.
"""

from __future__ import annotations

import asyncio
import random

from riverrun.client.consumer_member import ConsumerMember
from riverrun.client.fetcher import Fetcher
from riverrun.client.offsets import committed_offsets
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition
from riverrun.simulation.groups.ledger import Membership, Slot
from riverrun.simulation.groups.run import (
    MIXED,
    REBALANCE_MS,
    SESSION_MS,
    TICKETS,
    GroupRun,
    ticket,
)
from riverrun.simulation.groups.workers import (
    COMMIT_PROBABILITY,
    FAILURES,
    LIFE_SECONDS,
    POLL_WAIT_MS,
    SILENT_PROBABILITY,
    Worker,
)
from riverrun.simulation.world import Environment


class Mixer:
    def __init__(self, run: GroupRun) -> None:
        self._run = run
        self._worker = Worker(run, MIXED)

    async def run(self, environment: Environment) -> None:
        run = self._run
        rng = run.world.stream(f"{environment.name}/{environment.loop.host.starts}")
        await run.wait_for_topics()
        while run.is_working:
            if rng.random() < 0.5:
                await self._worker.live(environment, rng)
            else:
                await self._live_classic(environment, rng)
            await asyncio.sleep(rng.uniform(0.05, 0.5))

    async def _live_classic(self, environment: Environment, rng: random.Random) -> None:
        run = self._run
        membership = run.membership(environment, MIXED)
        async with run.pool(environment) as of_member, run.pool(environment) as pool:
            member = ConsumerMember(
                of_member,
                MIXED,
                [TICKETS],
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
            )
            heartbeats = asyncio.get_running_loop().create_task(member.keep_alive())
            life = _ClassicLife(run, environment.name, membership, member, (of_member, pool), rng)
            try:
                await life.live(heartbeats)
            except FAILURES as error:
                run.world.record(f"{environment.name} gives up: {error!r:.80}")
            finally:
                run.ledger.end(membership)
                heartbeats.cancel()
                await asyncio.wait([heartbeats])
            if not run.is_working or rng.random() >= SILENT_PROBABILITY:
                await member.leave()


class _ClassicLife:
    def __init__(
        self,
        run: GroupRun,
        name: str,
        membership: Membership,
        member: ConsumerMember,
        pools: tuple[ConnectionPool, ConnectionPool],
        rng: random.Random,
    ) -> None:
        """``pools``: of the member, and for records."""
        self._run = run
        self._name = name
        self._membership = membership
        self._member = member
        # A pool knows one coordinator at a time. Another one might still know a former one.
        self._of_member, self._pool = pools
        self._rng = rng
        self._uncommitted: dict[TopicPartition, int] = {}
        self._end = run.now + rng.uniform(*LIFE_SECONDS)

    @property
    def _is_over(self) -> bool:
        run = self._run
        return not run.is_working or (run.now > self._end and not run.is_settling)

    async def live(self, heartbeats: asyncio.Task[None]) -> None:
        fetcher = Fetcher(self._pool, wait_ms=POLL_WAIT_MS)
        while not self._is_over and not heartbeats.done():
            places = await self._join()
            fetcher.seek(await self._positions(places))
            while not (self._is_over or self._member.must_rejoin.is_set() or heartbeats.done()):
                if places:
                    await self._work(fetcher, places)
                else:
                    await asyncio.sleep(POLL_WAIT_MS / 1000)
            # The eager protocol gives up everything before it joins again.
            self._uncommitted = {}
            self._run.ledger.end(self._membership)

    async def _join(self) -> dict[TopicPartition, Slot]:
        run = self._run
        began = run.now
        assigned = await self._member.join()
        self._membership.generation = self._member.generation
        self._membership.answered(began)
        topic_id = run.topic_ids()[TICKETS][0]
        places = {ticket(index): (topic_id, index) for index in assigned.get(TICKETS, ())}
        for slot in places.values():
            run.ledger.claim(self._membership, slot, run.now)
        return places

    async def _positions(self, places: dict[TopicPartition, Slot]) -> dict[TopicPartition, int]:
        if not places:
            return {}
        found = await committed_offsets(self._of_member, MIXED, list(places))
        for at, slot in places.items():
            key = (MIXED, TICKETS, int(at.partition))
            self._run.ledger.fetched(self._membership, slot, key, found.get(at, 0), self._run.now)
        return {at: found.get(at, 0) for at in places}

    async def _work(self, fetcher: Fetcher, places: dict[TopicPartition, Slot]) -> None:
        run, ledger = self._run, self._run.ledger
        before = dict(fetcher.positions)
        for fetched in await fetcher.poll():
            at = fetched.partition
            ledger.processed((MIXED, TICKETS, int(at.partition)), before[at], fetched.next_offset)
            self._uncommitted[at] = fetched.next_offset
        offsets = dict(self._uncommitted)
        if not offsets or self._rng.random() >= COMMIT_PROBABILITY:
            return
        await asyncio.sleep(self._rng.uniform(0.0, 0.1))
        sent = [
            ledger.committing(
                self._membership, places[at], (MIXED, TICKETS, int(at.partition)), offset, run.now
            )
            for at, offset in offsets.items()
        ]
        if not await self._member.commit(offsets):
            ledger.refusals += 1
            return
        self._uncommitted = {}
        for commit in sent:
            ledger.accepted(commit, run.now)
        run.last_commit[self._name] = run.now
