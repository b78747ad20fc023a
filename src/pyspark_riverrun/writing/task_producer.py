"""Sends the batches of one task: idempotent, in order within each partition, several in flight.

A lane per partition lives in the loop of the link. Up to five batches are under way (what brokers
remember of a producer, KIP-98); when one fails for a reason that may pass, the lane waits until all
that are under way are settled, and sends what is not written again, in order and with the sequences
that it had, so that nothing is written twice by this producer. The task waits only when much is
under way.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pyspark_riverrun.arrow.encode import Block, Payload
from pyspark_riverrun.cluster.link import Link
from pyspark_riverrun.options import WriteOptions
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE, STALE_LEADER
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.records.batch import HEADER_BYTES, MAGIC, BatchHeader, Buffer
from riverrun.records.compression import Compression, compress
from riverrun.records.record import NewRecord, build_batch, header_of, read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.produce_response import ProduceResponse
from riverrun.wire.produce import produce_request_around

UNDER_WAY_BYTES_MAX: Final = 32 * 1024 * 1024
FILLED_BYTES_MAX: Final = 1024 * 1024
"""Of records that are packed into one batch, unless batches may be larger than this anyway."""
BY_NAME_MAX: Final = 12
SEQUENCES: Final = 2**31
ACKS_ALL: Final = -1
BACKOFF_S: Final = 0.05
BACKOFF_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdentity:
    """What brokers know a producer by; -1 and -1 for one that is not idempotent."""

    producer_id: int
    epoch: int

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id >= 0


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Header and records apart: the records stay where they were made until they are written."""

    header: bytes
    body: Buffer
    count: int
    base_sequence: int
    give_up_at: float
    block: Block | None
    """What is given back when the batch is written."""

    @property
    def size(self) -> int:
        return len(self.header) + len(self.body)


@dataclass(slots=True)
class Written:
    """What a partition has got."""

    records: int = 0
    first_offset: int = -1
    end_offset: int = -1


class TaskProducer:
    """Made and used by the thread of a task."""

    def __init__(self, link: Link, options: WriteOptions) -> None:
        self._link = link
        self.options = options
        self._identity = ProducerIdentity(producer_id=-1, epoch=-1)
        if options.acks == ACKS_ALL:
            self._identity = link.ask(_identity(link.pool))
        self._lanes: dict[TopicPartition, _Lane] = {}
        self._counts: dict[str, int] = {}
        self._ratios: dict[str, float] = {}
        self._changed = threading.Condition()
        self._under_way_bytes = 0
        self._failure: BaseException | None = None

    @property
    def identity(self) -> ProducerIdentity:
        return self._identity

    @property
    def written(self) -> dict[TopicPartition, Written]:
        return {at: lane.written for at, lane in self._lanes.items()}

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; one that is missing is created, if brokers do that."""
        if topic not in self._counts:
            self._counts[topic] = self._link.ask(_partition_count(self._link.pool, topic))
        return self._counts[topic]

    def room(self, topic: str) -> int:
        """How many bytes of records make a batch of the size that is asked for: as many more as
        compression takes away, by what it did to the last ones (Kafka's producer does so too).
        """
        wanted = self.options.batch_bytes
        return max(wanted, min(int(wanted / self._ratios.get(topic, 1.0)), FILLED_BYTES_MAX))

    def send(self, at: TopicPartition, payload: Payload) -> None:
        """Raises what made an earlier batch fail."""
        lane = self._lanes.get(at)
        if lane is None:
            lane = self._lanes[at] = _Lane(self, self._link.pool, at, self.options)
        batch = self._batch(lane, payload)
        self._learn(at.topic, batch.size / len(payload.records))
        block = batch.block
        assert block is not None, "only halves of batches have none"
        with self._changed:
            if not block.is_counted:
                self._changed.wait_for(self._has_room)
                block.is_counted = True
                self._under_way_bytes += block.size
            self._raise_failure()
        self._link.soon(lambda: lane.add(batch))

    def flush(self) -> None:
        """Wait until all is acknowledged; raises what made it fail."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way_bytes or self._failure is not None)
            self._raise_failure()

    def close(self) -> None:
        for lane in self._lanes.values():
            self._link.soon(lane.stop)

    def _has_room(self) -> bool:
        return self._under_way_bytes < UNDER_WAY_BYTES_MAX or self._failure is not None

    def _learn(self, topic: str, ratio: float) -> None:
        """Worse is believed at once, better by halves: a batch may be too large for its topic."""
        known = self._ratios.get(topic, 1.0)
        self._ratios[topic] = ratio if ratio > known else (known + ratio) / 2

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _batch(self, lane: _Lane, payload: Payload) -> _Batch:
        now_ms = time.time_ns() // 1_000_000
        sequence = lane.next_sequence if self._identity.is_idempotent else -1
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=int(self.options.compression),
            last_offset_delta=payload.count - 1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
            count=payload.count,
        )
        lane.next_sequence = (lane.next_sequence + payload.count) % SEQUENCES
        body: Buffer = payload.records
        block = payload.block
        if self.options.compression is not Compression.NONE:
            body = compress(self.options.compression, body)
            block = Block(size=HEADER_BYTES + len(body), left=1)
        return _Batch(
            header=header_of(header, body),
            body=body,
            count=payload.count,
            base_sequence=sequence,
            give_up_at=time.monotonic() + self.options.delivery_timeout_s,
            block=block,
        )

    # What the lanes tell, in the loop

    def settled(self, block: Block | None, failure: BaseException | None = None) -> None:
        with self._changed:
            if block is not None:
                block.left -= 1
                if block.left == 0:
                    self._under_way_bytes -= block.size
            self._failure = self._failure or failure
            self._changed.notify_all()


@dataclass(slots=True)
class _Lane:
    """All that goes to one partition. Lives in the loop, but for ``next_sequence``."""

    producer: TaskProducer
    pool: ConnectionPool
    at: TopicPartition
    options: WriteOptions
    next_sequence: int = 0
    written: Written = field(default_factory=Written)
    _waiting: deque[_Batch] = field(default_factory=deque)
    _task: asyncio.Task[None] | None = None

    def add(self, batch: _Batch) -> None:
        self._waiting.append(batch)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whatever ended it, the thread of the task waits for us, and is the one to raise it."""
        failure: BaseException | None = ConnectionError(f"{self.at}: sending was stopped")
        if not task.cancelled():
            failure = task.exception()
        if failure is not None:
            self.producer.settled(None, failure)

    async def _run(self) -> None:
        window: deque[tuple[_Batch, asyncio.Task[None]]] = deque()
        try:
            await self._send_all(window)
            self._task = None  # a lane that failed sends nothing more
        finally:
            # Nobody else knows of these, and what is given up must not be written later.
            for _, task in window:
                task.cancel()
            await asyncio.gather(*(task for _, task in window), return_exceptions=True)

    async def _send_all(self, window: deque[tuple[_Batch, asyncio.Task[None]]]) -> None:
        is_idempotent = self.producer.identity.is_idempotent
        window_max = self.options.in_flight_max if is_idempotent else 1
        failures = 0
        loop = asyncio.get_running_loop()
        while self._waiting or window:
            # After a failure one goes alone, so that its answer means what it says.
            while self._waiting and len(window) < (1 if failures else window_max):
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
                left = [one for one, task in window if task.exception() is not None]
                window.clear()
                halves = self._split(error, left[0])
                if halves:
                    left[:1] = halves
                    failures = 0
                else:
                    self._judge(error, left[0], was_alone=was_alone)
                self._waiting.extendleft(reversed(left))
                await self._pause(error, failures)

    def _judge(self, error: KafkaError | OSError, batch: _Batch, *, was_alone: bool) -> None:
        """Raise what cannot be helped by sending again."""
        if isinstance(error, KafkaError):
            # A batch behind the one that failed is out of order until that one is written.
            may_pass = error.code in RETRIABLE or (
                error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not was_alone
            )
            if not may_pass:
                raise error
        if not self.producer.identity.is_idempotent or time.monotonic() >= batch.give_up_at:
            raise error

    def _split(self, error: KafkaError | OSError, batch: _Batch) -> list[_Batch]:
        """The topic takes less than we gathered: two halves, with the sequences they had."""
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

    def _part(self, batch: _Batch, records: list[NewRecord], skipped: int) -> _Batch:
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
        )
        # What the whole took up is given back with the second half.
        return _Batch(
            header=data[:HEADER_BYTES],
            body=data[HEADER_BYTES:],
            count=len(records),
            base_sequence=sequence,
            give_up_at=batch.give_up_at,
            block=batch.block if skipped else None,
        )

    async def _pause(self, error: KafkaError | OSError, failures: int) -> None:
        if not isinstance(error, KafkaError) or error.code in STALE_LEADER:
            self.pool.cluster.topics.pop(self.at.topic, None)
        if failures:
            await asyncio.sleep(min(BACKOFF_S * 2 ** min(failures, 16), BACKOFF_S_MAX))

    async def _send(self, batch: _Batch) -> None:
        leader = await self.pool.leader(self.at.topic, self.at.partition)
        connection = await self.pool.node_connection(leader)
        topic_id = self.pool.cluster.topic_id(self.at.topic)
        version = connection.version_of(
            ApiKey.PRODUCE, at_most=BY_NAME_MAX if topic_id is None else None
        )
        before, behind = produce_request_around(
            version,
            acks=self.options.acks,
            timeout_ms=int(self.pool.request_timeout_s * 1000),
            topic=self.at.topic if topic_id is None or version <= BY_NAME_MAX else topic_id,
            partition=self.at.partition,
            size=batch.size,
        )
        body = (before + batch.header, batch.body, behind)
        if self.options.acks == 0:
            await connection.send_parts(ApiKey.PRODUCE, version, body)
            self._acknowledged(batch, -1)
            return
        answer: ProduceResponse = await connection.request_parts(ApiKey.PRODUCE, version, body)
        result = answer.responses[0].partition_responses[0]
        code = result.error_code
        if code not in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            raise KafkaError(code, f"{self.at}: {result.error_message or code.name}")
        self._acknowledged(batch, result.base_offset)

    def _acknowledged(self, batch: _Batch, base_offset: int) -> None:
        self.written.records += batch.count
        if base_offset >= 0:
            if self.written.first_offset < 0:
                self.written.first_offset = base_offset
            self.written.end_offset = base_offset + batch.count
        self.producer.settled(batch.block)


async def _identity(pool: ConnectionPool) -> ProducerIdentity:
    async def once() -> ProducerIdentity:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer: InitProducerIdResponse = await pool.request(ApiKey.INIT_PRODUCER_ID, message)
        if answer.error_code is not ErrorCode.NONE:
            raise KafkaError(answer.error_code, f"producer id: {answer.error_code.name}")
        return ProducerIdentity(producer_id=answer.producer_id, epoch=answer.producer_epoch)

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
