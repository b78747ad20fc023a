"""Writes records to one topic in batches, with one batch in flight per partition.

With acks=all the producer is idempotent, so a batch whose response was lost can be sent again. One
batch in flight keeps the order. The caller decides when to send: ``add`` returns True when enough
records are buffered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct, field

from riverrun.client.partitioner import StickyChoice, partition_of_key
from riverrun.client.partitions import produce
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.aio import run_together
from riverrun.ports.randomness import Randomness, SystemRandomness
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse

ACKS_ALL = -1
BATCH_BYTES = 512 * 1024
"""Size of a batch before compression: half of the default message.max.bytes."""
BUFFERED_BYTES_MAX = 8 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 24
SEQUENCES = 2**31
NO_PRODUCER_ID = -1
WriteRecords = Callable[[int, Sequence[NewRecord]], Awaitable[list[int]]]
"""Writes records to a partition and returns their offsets."""


class PartitionBuffer(Struct):
    """Buffered records of one partition, and the offsets of the records already written."""

    index: int
    records: list[NewRecord] = field(default_factory=list)
    buffered_bytes: int = 0
    next_sequence: int = 0
    count: int = 0
    first_offset: int = -1
    end_offset: int = -1


class Producer:
    """Created by ``open``. ``sent`` is called with (records, bytes) of each acknowledged batch."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        partitions: Sequence[int],
        *,
        acks: int,
        compression: Compression,
        producer_id: int,
        producer_epoch: int,
        randomness: Randomness,
        sent: Callable[[int, int], None],
        write: WriteRecords | None = None,
    ) -> None:
        self._pool = pool
        self._write = write
        self._topic = topic
        self._acks = acks
        self._compression = compression
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._sent = sent
        self._buffered_bytes = 0
        self._sticky = StickyChoice(partitions, randomness)
        self.partitions = {index: PartitionBuffer(index) for index in sorted(partitions)}

    @classmethod
    async def open(
        cls,
        pool: ConnectionPool,
        topic: str,
        *,
        acks: int = ACKS_ALL,
        compression: Compression = Compression.NONE,
        randomness: Randomness | None = None,
        sent: Callable[[int, int], None] = lambda _records, _bytes: None,
        waits: Callable[[str], None] = lambda _what: None,
        write: WriteRecords | None = None,
    ) -> Producer:
        """Find the topic, which the broker may create, and get a producer id. ``waits`` is called
        with a description of each request before it is sent. ``write`` writes the records instead,
        in a transaction.
        """
        waits(f"the leaders of topic {topic}")
        partitions = await _find_partitions(pool, topic)
        producer_id, producer_epoch = NO_PRODUCER_ID, -1
        if acks == ACKS_ALL and write is None:
            waits("a producer id, which the leader of the quorum gives out")
            producer_id, producer_epoch = await new_producer_id(pool, topic)
        return cls(
            pool,
            topic,
            partitions,
            acks=acks,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            randomness=randomness or SystemRandomness(),
            sent=sent,
            write=write,
        )

    def add(self, record: NewRecord, partition: int | None = None) -> bool:
        """Buffer a record. Returns True when it is time to ``flush``."""
        if partition is None:
            if record.key is None:
                partition = self._sticky.current
            else:
                partition = partition_of_key(record.key, len(self.partitions))
        state = self.partitions.get(partition)
        if state is None:
            text = f"topic {self._topic} has no partition {partition}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        size = size_of(record)
        state.records.append(record)
        state.buffered_bytes += size
        self._buffered_bytes += size
        return state.buffered_bytes >= BATCH_BYTES or self._buffered_bytes >= BUFFERED_BYTES_MAX

    async def flush(self) -> None:
        """Send all buffered records and wait until they are acknowledged."""
        waiting = [state for state in self.partitions.values() if state.records]
        self._sticky.move()
        self._buffered_bytes = 0
        await run_together(self._send_all(state) for state in waiting)

    async def _send_all(self, state: PartitionBuffer) -> None:
        records, state.records, state.buffered_bytes = state.records, [], 0
        pending = [records]
        while pending:
            part = pending.pop(0)
            try:
                await self._send(state, part)
            except KafkaError as error:
                # The topic's limit is smaller than our batch. The broker has written nothing.
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(part) == 1:
                    raise
                middle = len(part) // 2
                pending[:0] = [part[:middle], part[middle:]]

    async def _send(self, state: PartitionBuffer, records: list[NewRecord]) -> None:
        if self._write is not None:
            offsets = await self._write(state.index, records)
            _note_written(state, len(records), offsets[0], offsets[-1] + 1)
            return
        is_idempotent = self._producer_id != NO_PRODUCER_ID
        batch = build_batch(
            records,
            compression=self._compression,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=state.next_sequence if is_idempotent else -1,
        )
        produced = await produce(self._pool, self._topic, state.index, batch, acks=self._acks)
        count = len(records)
        state.next_sequence = (state.next_sequence + count) % SEQUENCES
        _note_written(state, count, produced.base_offset, produced.base_offset + count)
        self._sent(count, len(batch))


def _note_written(state: PartitionBuffer, count: int, first: int, end: int) -> None:
    """``first`` is -1 if the broker does not report offsets."""
    state.count += count
    if first >= 0:
        if state.first_offset < 0:
            state.first_offset = first
        state.end_offset = end


async def _find_partitions(pool: ConnectionPool, topic: str) -> list[int]:
    async def once() -> list[int]:
        row = (await pool.metadata([topic], may_create=True)).topics[0]
        if row.error_code is not ErrorCode.NONE:
            raise KafkaError(row.error_code, f"topic {topic}: {row.error_code.name}")
        indexes = [partition.partition_index for partition in row.partitions]
        for index in indexes:
            pool.cluster.leader(topic, index)
        return indexes

    return await pool.try_again(once)


async def new_producer_id(pool: ConnectionPool, topic: str | None = None) -> tuple[int, int]:
    """A producer id and its epoch, for idempotent writes without a transaction. ``topic`` is named
    if the user lacks the right to write."""

    async def once() -> tuple[int, int]:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response: InitProducerIdResponse = await pool.request(ApiKey.INIT_PRODUCER_ID, message)
        if response.error_code is not ErrorCode.NONE:
            raise KafkaError(response.error_code, _why_no_id(response.error_code, topic))
        return response.producer_id, response.producer_epoch

    return await pool.try_again(once)


def _why_no_id(code: ErrorCode, topic: str | None) -> str:
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        # Write on any topic is sufficient (KIP-679), so the user has it on none.
        place = "any topic" if topic is None else f"topic {topic}"
        return f"the user may not write: it lacks the right Write on {place} ({code.name})"
    return f"no producer id from the controller ({code.name}); has the quorum a leader?"


def size_of(record: NewRecord) -> int:
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 4
    return size
