"""Clients that write several partitions in one transaction, and read committed records in between.

Most transactions commit. Some abort, and some are abandoned: a new producer with the same id must
end them. Sometimes the old producer goes on after a new one has taken over, as a process does that
was paused and replaced: nothing of this zombie may become visible, and no commit may succeed.
"""

from __future__ import annotations

import asyncio
import random

from riverrun.client.connection import UnsupportedApi
from riverrun.client.fetcher import Fetcher
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import ProducerFenced, TransactionalProducer
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.records.record import NewRecord
from riverrun.simulation.transactions.run import (
    INPUTS,
    PARTITIONS,
    TRANSACTION_TIMEOUT_MS,
    TransactionRun,
    key_of,
    place,
)
from riverrun.simulation.world import Environment
from riverrun.testing.transaction_history import (
    CommittedRead,
    ObservedTransaction,
    TransactionWrite,
)

SENDS_MAX = 3
RECORDS_MAX = 3
COMMITS, ABORTS, ABANDONS = 0.72, 0.86, 0.93
"""Shares of transactions by their end, added up; the rest ends as zombies."""
LOOK_PROBABILITY = 0.3
LOOK_WAIT_MS = 50
TWIN_TRANSACTIONS_MAX = 3


class Feeder:
    """``is_twin``: only a few transactions at a time, with pauses between."""

    def __init__(self, run: TransactionRun, transactional_id: str, *, is_twin: bool = False):
        self._run = run
        self._id = transactional_id
        self._is_twin = is_twin

    async def run(self, environment: Environment) -> None:
        run = self._run
        rng = run.world.stream(f"{environment.name}/{environment.loop.host.starts}")
        await run.wait_for_topics()
        while run.is_feeding and (run.has_twin or not self._is_twin):
            if self._is_twin:
                await asyncio.sleep(rng.uniform(1.0, 5.0))
            async with run.pool(environment) as pool, run.pool(environment) as other:
                try:
                    await self._feed(environment, pool, other, rng)
                except (KafkaError, UnsupportedApi, OSError) as error:
                    run.world.record(f"{environment.name} gives up: {type(error).__name__}")
            await asyncio.sleep(rng.uniform(0.02, 0.3))

    async def _feed(
        self,
        environment: Environment,
        pool: ConnectionPool,
        other: ConnectionPool,
        rng: random.Random,
    ) -> None:
        producer = self._producer(pool, rng)
        await producer.init()
        fetcher = Fetcher(pool, wait_ms=LOOK_WAIT_MS, is_committed_only=True)
        fetcher.seek({place(INPUTS, index): 0 for index in range(PARTITIONS)})
        left = rng.randint(1, TWIN_TRANSACTIONS_MAX) if self._is_twin else -1
        while self._run.is_feeding and left != 0:
            left -= 1
            record = self._run.history.begin(environment.name, self._run.now)
            await producer.begin()
            if not await self._write(producer, fetcher, record, rng):
                continue
            end = rng.random()
            if end < COMMITS:
                await self._commit(producer, record, environment.name)
            elif end < ABORTS:
                await producer.abort()
                record.is_aborted(self._run.now)
            else:
                if end > ABANDONS:
                    newer = self._producer(other, rng)
                    await self._replace(producer, newer, record, rng, environment.name)
                return
            await asyncio.sleep(rng.uniform(0.0, 0.3))

    def _producer(self, pool: ConnectionPool, rng: random.Random) -> TransactionalProducer:
        return TransactionalProducer(
            pool,
            self._id,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            version_max=rng.choice(self._run.versions),
        )

    async def _write(
        self,
        producer: TransactionalProducer,
        fetcher: Fetcher,
        record: ObservedTransaction,
        rng: random.Random,
    ) -> bool:
        """Write and read inside a transaction; return False if it had to be aborted."""
        try:
            for _ in range(rng.randint(1, SENDS_MAX)):
                await self._send(producer, record, rng)
                if rng.random() < LOOK_PROBABILITY:
                    record.seen += await self._look(fetcher, record.name)
                await asyncio.sleep(rng.uniform(0.0, 0.15))
        except ProducerFenced:
            raise
        except (KafkaError, OSError) as error:
            self._run.world.record(f"{record.name} fails: {error!r:.80}")
            await producer.abort()
            record.is_aborted(self._run.now)
            return False
        return True

    async def _send(
        self, producer: TransactionalProducer, record: ObservedTransaction, rng: random.Random
    ) -> None:
        batches: dict[TopicPartition, list[NewRecord]] = {}
        for _ in range(rng.randint(1, RECORDS_MAX)):
            at = place(INPUTS, rng.randrange(PARTITIONS))
            value = f"{record.name}/{len(record.writes)}"
            record.writes.append(TransactionWrite(key_of(at), value))
            batches.setdefault(at, []).append(NewRecord(value.encode()))
        await producer.send(batches)

    async def _look(self, fetcher: Fetcher, reader: str) -> list[str]:
        """Read some committed records, as another part of the application would."""
        before = dict(fetcher.positions)
        seen: list[str] = []
        for fetched in await fetcher.poll():
            rows = [(row.offset, (row.value or b"").decode()) for row in fetched.records]
            seen += [value for _, value in rows]
            read = CommittedRead(
                reader=reader,
                partition=key_of(fetched.partition),
                start=before[fetched.partition],
                end=fetched.next_offset,
                rows=rows,
                now=self._run.now,
            )
            self._run.history.reads.append(read)
        return seen

    async def _commit(
        self, producer: TransactionalProducer, record: ObservedTransaction, name: str
    ) -> None:
        record.requests_commit(self._run.now)
        await producer.commit()
        record.is_committed(self._run.now)
        self._run.last_commit[name] = self._run.now

    async def _replace(
        self,
        older: TransactionalProducer,
        newer: TransactionalProducer,
        record: ObservedTransaction,
        rng: random.Random,
        name: str,
    ) -> None:
        """Let a newer producer take over, while the older one goes on as a zombie."""
        await newer.init()
        following = self._run.history.begin(name, self._run.now)
        await newer.begin()
        await self._send(newer, following, rng)
        try:
            if rng.random() < 0.5:
                await self._send(older, record, rng)
            await self._commit(older, record, "zombie")
        except (KafkaError, OSError) as error:
            self._run.world.record(f"zombie {record.name} fails: {error!r:.80}")
        await self._commit(newer, following, name)
