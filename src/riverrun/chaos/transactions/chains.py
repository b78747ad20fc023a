"""Read-process-write chains: one output for each input, with the group's offsets in the same
transaction."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AioError

from riverrun.chaos.clients.addresses import aiokafka_address, confluent_address
from riverrun.chaos.clients.consumers import QUICK, SESSION_MS
from riverrun.chaos.transactions.feeders import (
    ABORT_PROBABILITY,
    CALL_SECONDS_MAX,
    CLOSE_SECONDS_MAX,
    RECONNECT_SECONDS,
    REQUEST_MS,
    TRANSACTION_MS,
    FeedContext,
    confluent_producer,
    needs_abort,
)
from riverrun.testing.transaction_history import (
    CommittedRead,
    InputRecord,
    ObservedTransaction,
    Row,
    TransactionWrite,
)

BATCH_MAX = 50
POLL_SECONDS = 0.2
COMMITTED_SECONDS_MAX = 5.0
OFFSETS_SECONDS_MAX = 5.0
IDLE_MS_MAX = REQUEST_MS
"""Ends a wait of librdkafka 2.16 that has no time-out. Its producer caches the group coordinator
and keeps it when that broker is decommissioned: when Metadata no longer lists it, or when all
brokers were lost. The next ``send_offsets_to_transaction`` then waits until any connection changes
its state (librdkafka issue 5511), and ignores its own time-out (issue 5456). A waiting producer
sends nothing, so its connections become idle, and closing one of them wakes it. It may need two or
three of these. No request is pending on a connection that was idle for this long."""
Batch = dict[int, list[Row]]
"""Rows by input partition."""


class ChainContext:
    """A chain of one group from the inputs of a run to its outputs; the group names it."""

    def __init__(self, feed: FeedContext, *, group: str, outputs: str, stop: threading.Event):
        self.feed, self.group, self.outputs, self.stop = feed, group, outputs, stop

    def take(self, name: str, batch: Batch) -> ObservedTransaction:
        """Note what was read, and begin a transaction with the outputs and offsets."""
        feed = self.feed
        record = feed.history.begin(name, feed.now())
        for partition, rows in batch.items():
            read = CommittedRead(
                reader=name,
                partition=(feed.topic, partition),
                start=rows[0][0],
                end=rows[-1][0] + 1,
                rows=rows,
                now=feed.now(),
            )
            feed.history.reads.append(read)
            record.offsets[self.group, feed.topic, partition] = rows[-1][0] + 1
            for offset, _ in rows:
                at = (self.outputs, offset % feed.partitions)
                source = InputRecord(self.group, feed.topic, partition, offset)
                value = f"{record.name}/{len(record.writes)}"
                record.writes.append(TransactionWrite(at, value, source))
        return record


class ConfluentChain:
    """Keeps its consumer when a transaction fails, and goes back to the committed offsets.

    Meanwhile it polls the consumer. When all nodes were down, librdkafka 2.16 connects again only
    after the application has taken all events from its queue.
    """

    def __init__(self, context: ChainContext) -> None:
        self.name = context.group
        self._context = context

    def run(self) -> None:
        rng = random.Random(self.name)
        context = self._context
        consumer = confluent_kafka.Consumer(
            {
                **confluent_address(context.feed.bootstrap),
                "group.id": context.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 500,
                **QUICK,
            }
        )
        consumer.subscribe([context.feed.topic])
        while not context.stop.is_set():
            producer = confluent_producer(
                context.feed.bootstrap, self.name, **{"connections.max.idle.ms": IDLE_MS_MAX}
            )
            try:
                producer.init_transactions(CALL_SECONDS_MAX)
                _go_back(consumer)
                while not context.stop.is_set():
                    batch = _rows(consumer.consume(BATCH_MAX, POLL_SECONDS))
                    if batch and not self._transact(producer, consumer, batch, rng):
                        _go_back(consumer)
            except confluent_kafka.KafkaException:
                consumer.consume(BATCH_MAX, RECONNECT_SECONDS)
        consumer.close()

    def _transact(
        self,
        producer: confluent_kafka.Producer,
        consumer: confluent_kafka.Consumer,
        batch: Batch,
        rng: random.Random,
    ) -> bool:
        context = self._context
        producer.begin_transaction()
        record = context.take(self.name, batch)
        try:
            for write in record.writes:
                producer.produce(
                    write.partition[0], write.value.encode(), partition=write.partition[1]
                )
            offsets = [
                confluent_kafka.TopicPartition(context.feed.topic, partition, rows[-1][0] + 1)
                for partition, rows in batch.items()
            ]
            producer.send_offsets_to_transaction(
                offsets, consumer.consumer_group_metadata(), OFFSETS_SECONDS_MAX
            )
            if rng.random() < ABORT_PROBABILITY:
                producer.abort_transaction(CALL_SECONDS_MAX)
                record.is_aborted(context.feed.now())
                return False
            record.requests_commit(context.feed.now())
            producer.commit_transaction(CALL_SECONDS_MAX)
        except confluent_kafka.KafkaException as error:
            if not needs_abort(error):
                raise
            producer.abort_transaction(CALL_SECONDS_MAX)
            return False
        context.feed.committed(self.name, record)
        return True


def _go_back(consumer: confluent_kafka.Consumer) -> None:
    """Continue at the committed offsets, once no transaction is about to change them."""
    for at in consumer.committed(consumer.assignment(), COMMITTED_SECONDS_MAX):
        if at.error is not None:
            raise confluent_kafka.KafkaException(at.error)
        consumer.seek(confluent_kafka.TopicPartition(at.topic, at.partition, max(at.offset, 0)))


def _rows(messages: list[confluent_kafka.Message]) -> Batch:
    batch: Batch = {}
    for message in messages:
        partition, offset = message.partition(), message.offset()
        if message.error() is None and partition is not None and offset is not None:
            row = (offset, (message.value() or b"").decode())
            batch.setdefault(partition, []).append(row)
    return batch


class _Assignments(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts how often a consumer got its partitions."""

    def __init__(self) -> None:
        self.count = 0

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: object) -> None:
        self.count += 1


class AioChain:
    """The only member of its group: aiokafka does not send its generation with the offsets, so
    only its transactional id fences it.

    A consumer that lost its membership joins again by itself and asks for the committed offsets,
    in a version that does not wait for open transactions. They may be those before a transaction
    that is being committed, so the chain starts over: the new producer waits for its end.
    """

    def __init__(self, context: ChainContext) -> None:
        self.name = context.group
        self._context = context

    async def run(self) -> None:
        rng = random.Random(self.name)
        feed = self._context.feed
        while not self._context.stop.is_set():
            producer = aiokafka.AIOKafkaProducer(
                **aiokafka_address(feed.bootstrap),
                transactional_id=self.name,
                transaction_timeout_ms=TRANSACTION_MS,
                request_timeout_ms=5000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5000,
            )
            consumer = aiokafka.AIOKafkaConsumer(
                **aiokafka_address(feed.bootstrap),
                group_id=self._context.group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=500,
                request_timeout_ms=5000,
                retry_backoff_ms=50,
                metadata_max_age_ms=5000,
            )
            assignments = _Assignments()
            consumer.subscribe([feed.topic], listener=assignments)
            with contextlib.suppress(AioError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    # The producer first: it ends the transaction of its predecessor.
                    await producer.start()
                    await consumer.start()
                await self._process(producer, consumer, assignments, rng)
            for closing in (consumer.stop(), producer.stop()):
                with contextlib.suppress(AioError, TimeoutError, asyncio.CancelledError):
                    async with asyncio.timeout(CLOSE_SECONDS_MAX):
                        await closing
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _process(
        self,
        producer: aiokafka.AIOKafkaProducer,
        consumer: aiokafka.AIOKafkaConsumer,
        assignments: _Assignments,
        rng: random.Random,
    ) -> None:
        while not self._context.stop.is_set():
            found = await consumer.getmany(
                timeout_ms=int(POLL_SECONDS * 1000), max_records=BATCH_MAX
            )
            if assignments.count > 1:
                return
            batch = {
                at.partition: [(row.offset, (row.value or b"").decode()) for row in rows]
                for at, rows in found.items()
                if rows
            }
            if batch:
                async with asyncio.timeout(CALL_SECONDS_MAX):
                    if not await self._transact(producer, batch, rng):
                        return

    async def _transact(
        self, producer: aiokafka.AIOKafkaProducer, batch: Batch, rng: random.Random
    ) -> bool:
        context = self._context
        await producer.begin_transaction()
        record = context.take(self.name, batch)
        sending = [
            await producer.send(
                write.partition[0], write.value.encode(), partition=write.partition[1]
            )
            for write in record.writes
        ]
        await asyncio.gather(*sending)
        offsets = {
            aiokafka.TopicPartition(context.feed.topic, partition): rows[-1][0] + 1
            for partition, rows in batch.items()
        }
        await producer.send_offsets_to_transaction(offsets, context.group)
        if rng.random() < ABORT_PROBABILITY:
            await producer.abort_transaction()
            record.is_aborted(context.feed.now())
            return False
        record.requests_commit(context.feed.now())
        await producer.commit_transaction()
        context.feed.committed(self.name, record)
        return True
