"""Sends the batches of one task: idempotent, in order per partition, several in flight.

With a transactional id, the records are part of one transaction, which begins with the first batch.
The producer leaves it open: ``transaction`` describes it for the driver, which ends it.

Each partition has a sender in the event loop of the link. Up to five batches are in flight, because
brokers remember the last five of a producer (KIP-98). After a transient failure the sender waits
until all batches in flight are settled. It then resends the failed ones in order with their
original sequence numbers, so that this producer writes nothing twice. The task blocks only when too
many bytes are in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pyspark_riverrun.arrow.encode import Block, Payload
from pyspark_riverrun.cluster.link import BrokerLink
from pyspark_riverrun.delivery.record import OpenTransaction, WrittenRange
from pyspark_riverrun.delivery.requests import (
    TransactionIdentity,
    add_partition,
    end_transaction,
    open_transaction,
)
from pyspark_riverrun.options import WriteOptions
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE, STALE_LEADER
from riverrun.client.transactions import PRODUCE_V1_MAX
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import Backoff
from riverrun.records.batch import (
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
)
from riverrun.records.compression import Compression, compress
from riverrun.records.record import NewRecord, build_batch, header_of, read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.produce_response import ProduceResponse
from riverrun.wire.produce import produce_request_around

IN_FLIGHT_BYTES_MAX: Final = 32 * 1024 * 1024
FILLED_BYTES_MAX: Final = 1024 * 1024
"""Uncompressed records per batch, unless kafka.batch.size is larger."""
TOPIC_NAME_VERSION_MAX: Final = 12
SEQUENCES: Final = 2**31
ACKS_ALL: Final = -1
RESEND_BACKOFF: Final = Backoff(first_seconds=0.1, max_seconds=1.0)
ABORT_S_MAX: Final = 5.0
"""For a failed task. An open transaction that is left behind is aborted later in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """Producer id and epoch; both are -1 if the producer is not idempotent."""

    producer_id: int
    epoch: int
    transaction: TransactionIdentity | None = None

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0


NO_PRODUCER: Final = ProducerIdentity(producer_id=-1, epoch=-1)


@dataclass(slots=True, kw_only=True)
class _ProduceBatch:
    """Header and records are separate, so that the records are not copied."""

    header: bytes
    body: Buffer
    count: int
    base_sequence: int
    give_up_at: float
    block: Block | None
    """Memory that is released when the batch is written."""

    @property
    def size(self) -> int:
        return len(self.header) + len(self.body)


@dataclass(slots=True)
class PartitionWrites:
    """The records that a partition has received."""

    records: int = 0
    first_offset: int = -1
    end_offset: int = -1


class TaskProducer:
    """Created and used by the thread of a task."""

    def __init__(
        self, link: BrokerLink, options: WriteOptions, transactional_id: str | None = None
    ) -> None:
        self._link = link
        self.options = options
        self._transactional_id = transactional_id
        self._identity = NO_PRODUCER
        if options.acks == ACKS_ALL and transactional_id is None:
            self._identity = link.run(_identity(link.pool))
        self._senders: dict[TopicPartition, _PartitionSender] = {}
        self._counts: dict[str, int] = {}
        self._ratios: dict[str, float] = {}
        self._changed = threading.Condition()
        self._in_flight_bytes = 0
        self._failure: BaseException | None = None

    @property
    def identity(self) -> ProducerIdentity:
        return self._identity

    @property
    def written(self) -> dict[TopicPartition, PartitionWrites]:
        return {at: sender.written for at, sender in self._senders.items()}

    @property
    def transaction(self) -> OpenTransaction | None:
        """The open transaction, once all batches are acknowledged; None without records."""
        identity = self._identity.transaction
        if identity is None:
            return None
        ranges = [
            WrittenRange(at.topic, at.partition, one.first_offset, one.end_offset, one.records)
            for at, one in sorted(self.written.items())
        ]
        return OpenTransaction(
            identity.transactional_id, identity.producer_id, identity.epoch, tuple(ranges)
        )

    def partition_count(self, topic: str) -> int:
        """The number of partitions. A missing topic is created if brokers allow auto-creation."""
        if topic not in self._counts:
            self._counts[topic] = self._link.run(_partition_count(self._link.pool, topic))
        return self._counts[topic]

    def batch_bytes_target(self, topic: str) -> int:
        """Uncompressed bytes that give a batch of the configured size, by the recent compression
        ratio. Kafka's producer estimates it in the same way.
        """
        wanted = self.options.batch_bytes
        return max(wanted, min(int(wanted / self._ratios.get(topic, 1.0)), FILLED_BYTES_MAX))

    def send(self, at: TopicPartition, payload: Payload) -> None:
        """Queue a batch. Raises the error of an earlier batch."""
        if self._transactional_id is not None and self._identity is NO_PRODUCER:
            self._begin(self._transactional_id)
        sender = self._senders.get(at)
        if sender is None:
            sender = self._senders[at] = _PartitionSender(self, self._link.pool, at, self.options)
        batch = self._batch(sender, payload)
        self._update_ratio(at.topic, batch.size / len(payload.records))
        block = batch.block
        assert block is not None, "only the first half of a split batch has none"
        with self._changed:
            if not block.is_counted:
                self._changed.wait_for(self._has_room)
                block.is_counted = True
                self._in_flight_bytes += block.size
            self._raise_failure()
        self._link.call_soon(lambda: sender.add(batch))

    def flush(self) -> None:
        """Wait until all batches are acknowledged, or raise the error."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight_bytes or self._failure is not None)
            self._raise_failure()

    def close(self) -> None:
        for sender in self._senders.values():
            self._link.call_soon(sender.stop)

    def abort(self) -> None:
        """Abort the transaction of a task that has failed, if the cluster answers in time."""
        open_ = self.transaction
        if open_ is not None:
            work = end_transaction(self._link.pool, open_, is_commit=False)
            with contextlib.suppress(KafkaError, OSError):
                self._link.run(asyncio.wait_for(work, ABORT_S_MAX))

    def _begin(self, transactional_id: str) -> None:
        timeout_ms = self.options.transaction_timeout_ms
        found = self._link.run(open_transaction(self._link.pool, transactional_id, timeout_ms))
        self._identity = ProducerIdentity(
            producer_id=found.producer_id, epoch=found.epoch, transaction=found
        )

    def _has_room(self) -> bool:
        return self._in_flight_bytes < IN_FLIGHT_BYTES_MAX or self._failure is not None

    def _update_ratio(self, topic: str, ratio: float) -> None:
        """Follow a worse ratio at once and a better one by half, to avoid batches that are too
        large.
        """
        known = self._ratios.get(topic, 1.0)
        self._ratios[topic] = ratio if ratio > known else (known + ratio) / 2

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _batch(self, sender: _PartitionSender, payload: Payload) -> _ProduceBatch:
        now_ms = time.time_ns() // 1_000_000
        sequence = sender.next_sequence if self._identity.is_idempotent else -1
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=int(self.options.compression)
            | (TRANSACTIONAL_BIT if self._identity.transaction is not None else 0),
            last_offset_delta=payload.count - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
            count=payload.count,
        )
        sender.next_sequence = (sender.next_sequence + payload.count) % SEQUENCES
        body: Buffer = payload.records
        block = payload.block
        if self.options.compression is not Compression.NONE:
            body = compress(self.options.compression, body)
            block = Block(size=HEADER_BYTES + len(body), left=1)
        return _ProduceBatch(
            header=header_of(header, body),
            body=body,
            count=payload.count,
            base_sequence=sequence,
            give_up_at=time.monotonic() + self.options.delivery_timeout_s,
            block=block,
        )

    # Called by the senders in the event loop

    def on_settled(self, block: Block | None, failure: BaseException | None = None) -> None:
        with self._changed:
            if block is not None:
                block.left -= 1
                if block.left == 0:
                    self._in_flight_bytes -= block.size
            self._failure = self._failure or failure
            self._changed.notify_all()


@dataclass(slots=True)
class _PartitionSender:
    """Sends the batches of one partition. Used in the event loop, except ``next_sequence``."""

    producer: TaskProducer
    pool: ConnectionPool
    at: TopicPartition
    options: WriteOptions
    next_sequence: int = 0
    written: PartitionWrites = field(default_factory=PartitionWrites)
    _waiting: deque[_ProduceBatch] = field(default_factory=deque)
    _is_added: bool = False
    """Whether the coordinator knows that the transaction writes to this partition."""
    _task: asyncio.Task[None] | None = None

    def add(self, batch: _ProduceBatch) -> None:
        self._waiting.append(batch)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report the error to the thread of the task, which waits and raises it."""
        failure: BaseException | None = ConnectionError(f"{self.at}: sending was cancelled")
        if not task.cancelled():
            failure = task.exception()
        if failure is not None:
            self.producer.on_settled(None, failure)

    async def _run(self) -> None:
        window: deque[tuple[_ProduceBatch, asyncio.Task[None]]] = deque()
        try:
            await self._send_all(window)
            self._task = None  # a failed sender keeps its task and sends nothing more
        finally:
            # Cancel requests in flight: an abandoned batch must not be written later.
            for _, task in window:
                task.cancel()
            await asyncio.gather(*(task for _, task in window), return_exceptions=True)

    async def _send_all(self, window: deque[tuple[_ProduceBatch, asyncio.Task[None]]]) -> None:
        is_idempotent = self.producer.identity.is_idempotent
        is_transactional = self.producer.identity.transaction is not None
        window_max = self.options.in_flight_max if is_idempotent else 1
        failures = 0
        loop = asyncio.get_running_loop()
        while self._waiting or window:
            # After a failure send one batch at a time, so that its response is unambiguous. The
            # first batch of a transaction is verified by the coordinator, and later ones would be
            # out of order until then.
            is_first = is_transactional and self.written.records == 0
            while self._waiting and len(window) < (1 if failures or is_first else window_max):
                batch = self._waiting.popleft()
                window.append((batch, loop.create_task(self._send(batch))))
            batch, task = window[0]
            try:
                await task
                window.popleft()
                failures = 0
            except (KafkaError, OSError) as error:
                was_alone = failures > 0
                failures += 1
                await asyncio.gather(*(task for _, task in window), return_exceptions=True)
                failed = [one for one, task in window if task.exception() is not None]
                window.clear()
                halves = self._split(error, failed[0])
                if halves:
                    failed[:1] = halves
                    failures = 0
                else:
                    self._raise_unless_retriable(error, failed[0], was_alone=was_alone)
                self._waiting.extendleft(reversed(failed))
                await self._back_off(error, failures)

    def _raise_unless_retriable(
        self, error: KafkaError | OSError, batch: _ProduceBatch, *, was_alone: bool
    ) -> None:
        """Raise the error if resending cannot help."""
        if isinstance(error, KafkaError):
            # A batch after a failed one is out of order until that one is written.
            is_retriable = error.code in RETRIABLE or (
                error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not was_alone
            )
            if not is_retriable:
                raise error
        if not self.producer.identity.is_idempotent or time.monotonic() >= batch.give_up_at:
            raise error

    def _split(self, error: KafkaError | OSError, batch: _ProduceBatch) -> list[_ProduceBatch]:
        """Split a batch that is too large for the topic in two, with the same sequence numbers."""
        if not isinstance(error, KafkaError) or error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            return []
        if batch.count == 1:
            return []
        records = [
            NewRecord(value=one.value, key=one.key, timestamp=one.timestamp, headers=one.headers)
            for one in read_records(batch.header + bytes(batch.body))
        ]
        middle = batch.count // 2
        return [self._part(batch, records[:middle], 0), self._part(batch, records[middle:], middle)]

    def _part(self, batch: _ProduceBatch, records: list[NewRecord], skipped: int) -> _ProduceBatch:
        identity = self.producer.identity
        sequence = batch.base_sequence
        if identity.is_idempotent:
            sequence = (sequence + skipped) % SEQUENCES
        data = build_batch(
            records,
            compression=self.options.compression,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
            transactional=identity.transaction is not None,
        )
        # The memory of the whole batch is released with the second half.
        return _ProduceBatch(
            header=data[:HEADER_BYTES],
            body=data[HEADER_BYTES:],
            count=len(records),
            base_sequence=sequence,
            give_up_at=batch.give_up_at,
            block=batch.block if skipped else None,
        )

    async def _back_off(self, error: KafkaError | OSError, failures: int) -> None:
        if not isinstance(error, KafkaError) or error.code in STALE_LEADER:
            self.pool.cluster.topics.pop(self.at.topic, None)
        if failures:
            await asyncio.sleep(RESEND_BACKOFF.exact(failures))

    async def _send(self, batch: _ProduceBatch) -> None:
        leader = await self.pool.leader(self.at.topic, self.at.partition)
        connection = await self.pool.node_connection(leader)
        topic_id = self.pool.cluster.topic_id(self.at.topic)
        version_max = TOPIC_NAME_VERSION_MAX if topic_id is None else None
        transaction = self.producer.identity.transaction
        if transaction is not None and not transaction.is_version_2:
            version_max = PRODUCE_V1_MAX
            if not self._is_added:
                await add_partition(self.pool, transaction, self.at)
                self._is_added = True
        version = connection.version_of(ApiKey.PRODUCE, at_most=version_max)
        prefix, suffix = produce_request_around(
            version,
            acks=self.options.acks,
            timeout_ms=int(self.pool.request_timeout_s * 1000),
            topic=self.at.topic
            if topic_id is None or version <= TOPIC_NAME_VERSION_MAX
            else topic_id,
            partition=self.at.partition,
            size=batch.size,
            transactional_id=None if transaction is None else transaction.transactional_id,
        )
        body = (prefix + batch.header, batch.body, suffix)
        if self.options.acks == 0:
            await connection.send_parts(ApiKey.PRODUCE, version, body)
            self._acknowledged(batch, -1)
            return
        response: ProduceResponse = await connection.request_parts(ApiKey.PRODUCE, version, body)
        result = response.responses[0].partition_responses[0]
        code = result.error_code
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise KafkaError(code, f"{self.at}: {result.error_message or code.name}")
        if transaction is not None and result.base_offset < 0:
            raise KafkaError(code, f"{self.at}: the offsets of a batch are unknown")
        self._acknowledged(batch, result.base_offset)

    def _acknowledged(self, batch: _ProduceBatch, base_offset: int) -> None:
        self.written.records += batch.count
        if base_offset >= 0:
            if self.written.first_offset < 0:
                self.written.first_offset = base_offset
            self.written.end_offset = base_offset + batch.count
        self.producer.on_settled(batch.block)


async def _identity(pool: ConnectionPool) -> ProducerIdentity:
    async def once() -> ProducerIdentity:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response: InitProducerIdResponse = await pool.request(ApiKey.INIT_PRODUCER_ID, message)
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(response.error_code, f"producer id: {response.error_code.name}")
        return ProducerIdentity(producer_id=response.producer_id, epoch=response.producer_epoch)

    return await pool.try_again(once)


async def _partition_count(pool: ConnectionPool, topic: str) -> int:
    async def once() -> int:
        row = (await pool.metadata([topic], may_create=True)).topics[0]
        if row.error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, f"topic {topic}: {row.error_code.name}")
        for partition in row.partitions:
            pool.cluster.leader(topic, partition.partition_index)
        return len(row.partitions)

    return await pool.try_again(once)
