"""Members of the consumer protocol that read, commit and never stay for long.

One of them is static, one subscribes by a regular expression. A life ends with a farewell, with the
promise to return (static members), or without a word. Some revocations are slow.
"""

from __future__ import annotations

import asyncio
import random

from riverrun.client.connection import UnsupportedApi
from riverrun.client.consumer_heartbeats import FENCED, HeartbeatMember
from riverrun.client.fetcher import Fetcher
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.simulation.groups.ledger import Slot
from riverrun.simulation.groups.run import (
    CREW,
    EXTRAS_REGEX,
    REBALANCE_MS,
    REGEX_WORKER,
    STATIC_WORKER,
    TICKETS,
    GroupRun,
    ticket,
)
from riverrun.simulation.world import Environment

LIFE_SECONDS = (2.0, 9.0)
SLOW_PROBABILITY = 0.3
SLOW_SECONDS_MAX = 2.0
SILENT_PROBABILITY = 0.3
COMMIT_PROBABILITY = 0.7
POLL_WAIT_MS = 150
FAILURES = (KafkaError, UnsupportedApi, OSError)


class Worker:
    def __init__(self, run: GroupRun, group: str = CREW) -> None:
        self._run = run
        self._group = group

    async def run(self, environment: Environment) -> None:
        run = self._run
        rng = run.world.stream(f"{environment.name}/{environment.loop.host.starts}")
        await run.wait_for_topics()
        while run.is_working:
            await self.live(environment, rng)
            await asyncio.sleep(rng.uniform(0.05, 0.5))

    async def live(self, environment: Environment, rng: random.Random) -> None:
        """One life: from the first heartbeat to the last one."""
        run = self._run
        async with run.pool(environment) as of_member, run.pool(environment) as pool:
            life = WorkerLife(run, environment, self._group, of_member, pool, rng)
            try:
                await life.live()
            except FAILURES as error:
                run.world.record(f"{environment.name} gives up: {error!r:.80}")
            finally:
                run.ledger.end(life.membership)
            if run.is_working and rng.random() < SILENT_PROBABILITY:
                return
            will_return = environment.name == STATIC_WORKER and rng.random() < 0.5
            try:
                await life.member.leave(will_return=will_return)
            except FAILURES as error:
                run.world.record(f"{environment.name} cannot leave: {error!r:.80}")


class WorkerLife:
    def __init__(
        self,
        run: GroupRun,
        environment: Environment,
        group: str,
        of_member: ConnectionPool,
        pool: ConnectionPool,
        rng: random.Random,
    ) -> None:
        self._run = run
        self._group = group
        self._name = environment.name
        self._pool = pool
        self._rng = rng
        self._fetcher = Fetcher(pool, wait_ms=POLL_WAIT_MS)
        self._sent = 0.0
        self._uncommitted: dict[TopicPartition, int] = {}
        self._release_at: float | None = None
        self._end = run.now + rng.uniform(*LIFE_SECONDS)
        self.membership = run.membership(environment, group)
        has_regex = environment.name == REGEX_WORKER
        self._has_names = not has_regex
        self.member = HeartbeatMember(
            of_member,
            group,
            str(environment.randomness.uuid()),
            self._topics() if self._has_names else (),
            regex=EXTRAS_REGEX if has_regex else None,
            instance_id=environment.name if environment.name == STATIC_WORKER else None,
            rebalance_timeout_ms=REBALANCE_MS,
            sending=self._note_sending,
        )

    def _note_sending(self) -> None:
        self._sent = self._run.now

    def _topics(self) -> list[str]:
        """All topics in the end; before, some of them."""
        run = self._run
        if self._group != CREW:
            return [TICKETS]
        if run.is_settling:
            return run.topics
        return [TICKETS, *(name for name in run.extras if self._rng.random() < 0.8)]

    async def live(self) -> None:
        run = self._run
        while run.is_working and (run.is_settling or run.now < self._end):
            if self._has_names and (run.is_settling or self._rng.random() < 0.1):
                self.member.subscribe(self._topics())
            await self._give_up_revoked()
            await self._beat()
            until = run.now + max(self.member.interval_s, 0.05)
            while run.now < until:
                await self._work(until)

    async def _beat(self) -> None:
        run, member, ledger = self._run, self.member, self._run.ledger
        try:
            await member.beat()
        except KafkaError as error:
            if error.code in FENCED:
                ledger.check_fenced(self.membership, run.now, member.doubts, error.code.name)
                ledger.end(self.membership)
                self._fetcher.seek({})
                self._uncommitted = {}
                self._release_at = None
            if error.code not in (*FENCED, ErrorCode.UNRELEASED_INSTANCE_ID):
                raise
            await asyncio.sleep(0.3)
            return
        self.membership.answered(self._sent)
        if self._group == CREW:
            run.answered_epoch = max(run.answered_epoch, member.epoch)
        taken = [slot for slot in member.assigned if slot not in member.owned]
        for slot in taken:
            member.owned[slot] = None
            ledger.claim(self.membership, slot, run.now)
        await self._start_at_committed()

    async def _start_at_committed(self) -> None:
        """Find the positions of partitions that have none yet."""
        owned = self._tickets(list(self.member.assigned))
        places = {at: slot for at, slot in owned.items() if at not in self._fetcher.positions}
        if not places:
            return
        try:
            found = await self.member.committed(list(places))
        except KafkaError as error:
            if error.code not in (*FENCED, ErrorCode.STALE_MEMBER_EPOCH):
                raise
            return  # the next heartbeat brings the newest epoch
        for at, slot in places.items():
            offset = found.get(at, 0)
            key = (self._group, str(at.topic), int(at.partition))
            self._run.ledger.fetched(self.membership, slot, key, offset, self._run.now)
            self._fetcher.positions[at] = offset

    def _tickets(self, slots: list[Slot]) -> dict[TopicPartition, Slot]:
        topic_id = self._run.topic_ids()[TICKETS][0]
        return {ticket(slot[1]): slot for slot in slots if slot[0] == topic_id}

    async def _give_up_revoked(self) -> None:
        """Commit what was read, then let go; sometimes only after a while."""
        revoked = self.member.revoked
        if not revoked:
            self._release_at = None
            return
        if self._release_at is None:
            is_slow = self._rng.random() < SLOW_PROBABILITY
            self._release_at = self._run.now + (
                self._rng.uniform(0.0, SLOW_SECONDS_MAX) if is_slow else 0.0
            )
        if self._run.now < self._release_at:
            return
        self._release_at = None
        places = self._tickets(revoked)
        for at in places:
            self._fetcher.positions.pop(at, None)
        if self._rng.random() < COMMIT_PROBABILITY:
            await self._commit({at: slot for at, slot in places.items() if at in self._uncommitted})
        for at in places:
            self._uncommitted.pop(at, None)
        self._run.ledger.release(self.membership, revoked)
        for slot in revoked:
            self.member.owned.pop(slot, None)

    async def _work(self, until: float) -> None:
        run, fetcher = self._run, self._fetcher
        if not fetcher.positions:
            await asyncio.sleep(max(until - run.now, 0.01))
            return
        before = dict(fetcher.positions)
        batch = await fetcher.poll()
        for fetched in batch:
            at = fetched.partition
            key = (self._group, str(at.topic), int(at.partition))
            run.ledger.processed(key, before[at], fetched.next_offset)
            self._uncommitted[at] = fetched.next_offset
        if self._uncommitted and self._rng.random() < COMMIT_PROBABILITY:
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))
            await self._commit(self._tickets(list(self.member.owned)))

    async def _commit(self, places: dict[TopicPartition, Slot]) -> None:
        """Commit the positions of some partitions. A commit that failed is repeated later."""
        run, ledger = self._run, self._run.ledger
        offsets = {at: self._uncommitted[at] for at in places if at in self._uncommitted}
        if not offsets:
            return
        sent = [
            ledger.committing(
                self.membership,
                places[at],
                (self._group, str(at.topic), int(at.partition)),
                offset,
                run.now,
            )
            for at, offset in offsets.items()
        ]
        try:
            await self.member.commit(offsets)
        except FAILURES as error:
            ledger.refusals += 1
            run.world.record(f"{self._name} cannot commit: {error!r:.80}")
            return
        for at in offsets:
            del self._uncommitted[at]
        for commit in sent:
            ledger.accepted(commit, run.now)
        run.last_commit[self._name] = run.now
