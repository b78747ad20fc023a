"""Producers of three libraries that write several partitions in one transaction.

The libraries use both generations of the protocol: confluent-kafka and aiokafka the first one, our
own client the second one. Most transactions commit, some abort.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError

from riverrun.chaos.clients.addresses import aiokafka_address, confluent_address, own_pool
from riverrun.chaos.clients.consumers import QUICK
from riverrun.client.connection import UnsupportedApi
from riverrun.client.retry import RetryPolicy
from riverrun.client.transactions import TransactionalProducer
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.record import NewRecord
from riverrun.testing.transaction_history import (
    ObservedTransaction,
    TransactionHistory,
    TransactionWrite,
)

ABORT_PROBABILITY = 0.2
RECORDS_MAX = 5
TRANSACTION_MS = 15_000
REQUEST_MS = 3000
CALL_SECONDS_MAX = 20.0
CLOSE_SECONDS_MAX = 5.0
"""aiokafka flushes when it is stopped, and waits in vain if its last transaction has timed out."""
PAUSE_SECONDS = 0.1
RECONNECT_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class FeedContext:
    """What the transactional clients of a run share."""

    bootstrap: str
    topic: str
    partitions: int
    history: TransactionHistory
    now: Callable[[], float]
    stop: threading.Event
    last_commit: dict[str, float] = field(default_factory=dict)

    def draw(self, record: ObservedTransaction, rng: random.Random) -> list[TransactionWrite]:
        """The writes of a transaction, noted before they are sent."""
        for number in range(rng.randint(1, RECORDS_MAX)):
            partition = (self.topic, rng.randrange(self.partitions))
            record.writes.append(TransactionWrite(partition, f"{record.name}/{number}"))
        return record.writes

    def committed(self, process: str, record: ObservedTransaction) -> None:
        record.is_committed(self.now())
        self.last_commit[process] = self.now()


def confluent_producer(
    bootstrap: str, transactional_id: str, **settings: str | int
) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {
            **confluent_address(bootstrap),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": TRANSACTION_MS,
            "request.timeout.ms": REQUEST_MS,
            **QUICK,
            **settings,
        }
    )


def needs_abort(error: confluent_kafka.KafkaException) -> bool:
    reason = error.args[0]
    return bool(reason.txn_requires_abort())


class ConfluentFeeder:
    def __init__(self, context: FeedContext, name: str) -> None:
        self.name = name
        self._context = context

    def run(self) -> None:
        rng = random.Random(self.name)
        while not self._context.stop.is_set():
            producer = confluent_producer(self._context.bootstrap, self.name)
            try:
                producer.init_transactions(CALL_SECONDS_MAX)
                while not self._context.stop.is_set():
                    self._transact(producer, rng)
                    self._context.stop.wait(rng.uniform(0, PAUSE_SECONDS))
            except confluent_kafka.KafkaException:
                self._context.stop.wait(RECONNECT_SECONDS)  # fenced or too late: a new producer

    def _transact(self, producer: confluent_kafka.Producer, rng: random.Random) -> None:
        context = self._context
        record = context.history.begin(self.name, context.now())
        producer.begin_transaction()
        try:
            for write in context.draw(record, rng):
                topic, partition = write.partition
                producer.produce(topic, write.value.encode(), partition=partition)
            if rng.random() < ABORT_PROBABILITY:
                producer.flush(CALL_SECONDS_MAX)
                producer.abort_transaction(CALL_SECONDS_MAX)
                record.is_aborted(context.now())
                return
            record.requests_commit(context.now())
            producer.commit_transaction(CALL_SECONDS_MAX)
        except confluent_kafka.KafkaException as error:
            if not needs_abort(error):
                raise
            producer.abort_transaction(CALL_SECONDS_MAX)
            return
        context.committed(self.name, record)


class AioFeeder:
    def __init__(self, context: FeedContext, name: str) -> None:
        self.name = name
        self._context = context

    async def run(self) -> None:
        rng = random.Random(self.name)
        while not self._context.stop.is_set():
            producer = aiokafka.AIOKafkaProducer(
                **aiokafka_address(self._context.bootstrap),
                transactional_id=self.name,
                transaction_timeout_ms=TRANSACTION_MS,
                request_timeout_ms=5000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5000,
            )
            with contextlib.suppress(AioError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    await producer.start()
                while not self._context.stop.is_set():
                    async with asyncio.timeout(CALL_SECONDS_MAX):
                        await self._transact(producer, rng)
                    await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS))
            with contextlib.suppress(AioError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await producer.stop()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _transact(self, producer: aiokafka.AIOKafkaProducer, rng: random.Random) -> None:
        context = self._context
        record = context.history.begin(self.name, context.now())
        await producer.begin_transaction()
        sending = [
            await producer.send(
                write.partition[0], write.value.encode(), partition=write.partition[1]
            )
            for write in context.draw(record, rng)
        ]
        await asyncio.gather(*sending)
        if rng.random() < ABORT_PROBABILITY:
            await producer.abort_transaction()
            record.is_aborted(context.now())
            return
        record.requests_commit(context.now())
        await producer.commit_transaction()
        context.committed(self.name, record)


class OwnFeeder:
    def __init__(self, context: FeedContext, name: str) -> None:
        self.name = name
        self._context = context

    async def run(self) -> None:
        rng = random.Random(self.name)
        retry = RetryPolicy(tries_max=100, total_s_max=CALL_SECONDS_MAX, backoff_s_max=0.3)
        while not self._context.stop.is_set():
            bootstrap = self._context.bootstrap
            async with own_pool(bootstrap, request_timeout_s=5.0, retry=retry) as pool:
                producer = TransactionalProducer(pool, self.name, timeout_ms=TRANSACTION_MS)
                with contextlib.suppress(KafkaError, UnsupportedApi, OSError):
                    await producer.init()
                    while not self._context.stop.is_set():
                        await self._transact(producer, rng)
                        await asyncio.sleep(rng.uniform(0, PAUSE_SECONDS))
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _transact(self, producer: TransactionalProducer, rng: random.Random) -> None:
        context = self._context
        record = context.history.begin(self.name, context.now())
        await producer.begin()
        batches: dict[TopicPartition, list[NewRecord]] = {}
        for write in context.draw(record, rng):
            topic, partition = write.partition
            at = TopicPartition(TopicName(topic), PartitionIndex(partition))
            batches.setdefault(at, []).append(NewRecord(write.value.encode()))
        try:
            await producer.send(batches)
            if rng.random() < ABORT_PROBABILITY:
                await producer.abort()
                record.is_aborted(context.now())
                return
        except KafkaError:
            await producer.abort()
            return
        record.requests_commit(context.now())
        await producer.commit()
        context.committed(self.name, record)
