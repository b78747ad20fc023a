"""Members of a group that read one topic and write another, each input exactly once.

A member writes its outputs and its group's offsets in one transaction (KIP-447). A member that was
paused, fenced or removed from the group must leave no trace of its unfinished work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from riverrun.client.connection import UnsupportedApi
from riverrun.client.consumer_member import ConsumerMember
from riverrun.client.fetcher import FetchedRecords, Fetcher
from riverrun.client.offsets import committed_offsets
from riverrun.client.pool import ConnectionPool
from riverrun.client.transactions import GroupMembership, ProducerFenced, TransactionalProducer
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.records.record import NewRecord
from riverrun.simulation.transactions.run import (
    CHAIN_GROUP,
    INPUTS,
    OUTPUTS,
    PARTITIONS,
    TRANSACTION_TIMEOUT_MS,
    TransactionRun,
    key_of,
    place,
)
from riverrun.simulation.world import Environment
from riverrun.testing.transaction_history import (
    CommittedRead,
    FetchedOffset,
    InputRecord,
    ObservedTransaction,
    TransactionWrite,
)

ABORT_PROBABILITY = 0.1
POLL_WAIT_MS = 300
SESSION_MS, REBALANCE_MS = 6000, 4000


class Chain:
    def __init__(self, run: TransactionRun) -> None:
        self._run = run

    async def run(self, environment: Environment) -> None:
        run = self._run
        rng = run.world.stream(f"{environment.name}/{environment.loop.host.starts}")
        await run.wait_for_topics()
        while run.is_chaining:
            async with run.pool(environment) as of_member, run.pool(environment) as pool:
                member = ConsumerMember(
                    of_member,
                    CHAIN_GROUP,
                    [INPUTS],
                    session_timeout_ms=SESSION_MS,
                    rebalance_timeout_ms=REBALANCE_MS,
                )
                heartbeats = asyncio.get_running_loop().create_task(member.keep_alive())
                try:
                    await self._process(environment.name, member, heartbeats, pool, rng)
                except (KafkaError, UnsupportedApi, OSError) as error:
                    run.world.record(f"{environment.name} gives up: {type(error).__name__}")
                finally:
                    heartbeats.cancel()
                    await asyncio.wait([heartbeats])
                    await member.leave()
            await asyncio.sleep(rng.uniform(0.05, 0.3))

    async def _process(
        self,
        name: str,
        member: ConsumerMember,
        heartbeats: asyncio.Task[None],
        pool: ConnectionPool,
        rng: random.Random,
    ) -> None:
        producer = TransactionalProducer(
            pool,
            name,
            timeout_ms=TRANSACTION_TIMEOUT_MS,
            version_max=rng.choice(self._run.versions),
        )
        await producer.init()
        fetcher = Fetcher(pool, wait_ms=POLL_WAIT_MS, is_committed_only=True)
        while self._run.is_chaining and not heartbeats.done():
            assigned = await member.join()
            # Not later: a member that was removed has no generation, which the coordinator would
            # not check.
            membership = GroupMembership(CHAIN_GROUP, member.generation, member.member_id)
            partitions = [place(topic, p) for topic, rows in assigned.items() for p in rows]
            fetcher.seek(await self._positions(pool, partitions))
            while self._run.is_chaining and not member.must_rejoin.is_set():
                if heartbeats.done():
                    return
                if not partitions:
                    await asyncio.sleep(POLL_WAIT_MS / 1000)
                    continue
                before = dict(fetcher.positions)
                batch = self._note_reads(name, before, await fetcher.poll())
                if batch and not await self._transact(
                    name, producer, member, membership, batch, rng
                ):
                    fetcher.seek(before)

    async def _positions(
        self, pool: ConnectionPool, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        began = self._run.now
        found = await committed_offsets(pool, CHAIN_GROUP, partitions)
        for at in partitions:
            fetched = FetchedOffset(
                group=(CHAIN_GROUP, *key_of(at)),
                offset=found.get(at),
                began=began,
                now=self._run.now,
            )
            self._run.history.fetched_offsets.append(fetched)
        return {at: found.get(at, 0) for at in partitions}

    def _note_reads(
        self, name: str, before: dict[TopicPartition, int], batch: list[FetchedRecords]
    ) -> list[FetchedRecords]:
        """Record what was read, and return the partitions that have records."""
        for fetched in batch:
            read = CommittedRead(
                reader=name,
                partition=key_of(fetched.partition),
                start=before[fetched.partition],
                end=fetched.next_offset,
                rows=[(row.offset, (row.value or b"").decode()) for row in fetched.records],
                now=self._run.now,
            )
            self._run.history.reads.append(read)
        return [fetched for fetched in batch if fetched.records]

    async def _transact(
        self,
        name: str,
        producer: TransactionalProducer,
        member: ConsumerMember,
        membership: GroupMembership,
        batch: list[FetchedRecords],
        rng: random.Random,
    ) -> bool:
        """Write the outputs of a batch with its offsets; return False if it was aborted."""
        run = self._run
        record = run.history.begin(name, run.now)
        outputs = _outputs(record, batch, rng)
        offsets = {fetched.partition: fetched.next_offset for fetched in batch}
        await producer.begin()
        try:
            await producer.send(outputs)
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            await producer.send_offsets(offsets, membership)
            if rng.random() < ABORT_PROBABILITY:
                await producer.abort()
                record.is_aborted(run.now)
                return False
        except ProducerFenced:
            raise
        except (KafkaError, OSError) as error:
            run.world.record(f"{record.name} fails: {error!r:.80}")
            await producer.abort()
            record.is_aborted(run.now)
            member.must_rejoin.set()
            return False
        record.requests_commit(run.now)
        await producer.commit()
        record.is_committed(run.now)
        run.last_commit[name] = run.now
        return True


def _outputs(
    record: ObservedTransaction, batch: list[FetchedRecords], rng: random.Random
) -> dict[TopicPartition, list[NewRecord]]:
    """One output for each input. They are noted before they are sent."""
    outputs: dict[TopicPartition, list[NewRecord]] = {}
    for fetched in batch:
        topic, partition = key_of(fetched.partition)
        record.offsets[CHAIN_GROUP, topic, partition] = fetched.next_offset
        for row in fetched.records:
            at = place(OUTPUTS, rng.randrange(PARTITIONS))
            value = f"{record.name}/{len(record.writes)}"
            source = InputRecord(CHAIN_GROUP, topic, partition, row.offset)
            record.writes.append(TransactionWrite(key_of(at), value, source))
            outputs.setdefault(at, []).append(NewRecord(value.encode()))
    return outputs
