"""Records to one topic in batches: gathers them by partition, one batch to each at a time.

With acks=all the producer is idempotent, so that a batch whose answer was lost can be sent again. A
batch in flight per partition keeps the order by itself. When to send is left to the caller (``add``
says that enough has been gathered), as is where the records come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct, field

from riverrun.client.partitioner import StickyChoice, partition_of_key
from riverrun.client.partitions import produce
from riverrun.client.pool import ConnectionPool
from riverrun.client.together import together
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.randomness import Randomness, SystemRandomness
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse

ACKS_ALL = -1
BATCH_BYTES = 512 * 1024
"""Of records before compression; half of what a topic takes by default."""
GATHERED_BYTES_MAX = 8 * 1024 * 1024
RECORD_OVERHEAD_BYTES = 24
SEQUENCES = 2**31
NO_PRODUCER_ID = -1


class PartitionBuffer(Struct):
    """What is gathered for one partition, and what it has got so far."""

    index: int
    records: list[NewRecord] = field(default_factory=list)
    gathered_bytes: int = 0
    next_sequence: int = 0
    count: int = 0
    first_offset: int = -1
    end_offset: int = -1


class Producer:
    """Made by ``open``. ``sent`` hears of (records, bytes) whenever a batch is acknowledged."""

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
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._acks = acks
        self._compression = compression
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._sent = sent
        self._gathered_bytes = 0
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
    ) -> Producer:
        """Finds the topic, which the broker may create, and gets a producer id. ``waits`` hears
        what is waited for.
        """
        waits(f"the leaders of topic {topic}")
        partitions = await _find_partitions(pool, topic)
        producer_id, producer_epoch = NO_PRODUCER_ID, -1
        if acks == ACKS_ALL:
            waits("a producer id, which the leader of the quorum gives out")
            producer_id, producer_epoch = await _get_producer_id(pool)
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
        )

    def add(self, record: NewRecord, partition: int | None = None) -> bool:
        """Take a record; True when it is time to ``flush``."""
        if partition is None:
            if record.key is None:
                partition = self._sticky.current
            else:
                partition = partition_of_key(record.key, len(self.partitions))
        state = self.partitions.get(partition)
        if state is None:
            text = f"topic {self._topic} has no partition {partition}"
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
        size = _size_of(record)
        state.records.append(record)
        state.gathered_bytes += size
        self._gathered_bytes += size
        return state.gathered_bytes >= BATCH_BYTES or self._gathered_bytes >= GATHERED_BYTES_MAX

    async def flush(self) -> None:
        """Send all that is gathered, and wait until it is acknowledged."""
        waiting = [state for state in self.partitions.values() if state.records]
        self._sticky.move()
        self._gathered_bytes = 0
        await together(self._send_all(state) for state in waiting)

    async def _send_all(self, state: PartitionBuffer) -> None:
        records, state.records, state.gathered_bytes = state.records, [], 0
        pending = [records]
        while pending:
            part = pending.pop(0)
            try:
                await self._send(state, part)
            except KafkaError as error:
                # The topic takes less than we gathered; the broker has written nothing of it.
                if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(part) == 1:
                    raise
                middle = len(part) // 2
                pending[:0] = [part[:middle], part[middle:]]

    async def _send(self, state: PartitionBuffer, records: list[NewRecord]) -> None:
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
        state.count += count
        if produced.base_offset >= 0:
            if state.first_offset < 0:
                state.first_offset = produced.base_offset
            state.end_offset = produced.base_offset + count
        self._sent(count, len(batch))


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


async def _get_producer_id(pool: ConnectionPool) -> tuple[int, int]:
    async def once() -> tuple[int, int]:
        message = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer: InitProducerIdResponse = await pool.request(ApiKey.INIT_PRODUCER_ID, message)
        if answer.error_code is not ErrorCode.NONE:
            why = f"no controller gives out producer ids ({answer.error_code.name})"
            raise KafkaError(answer.error_code, f"{why}; has the quorum a leader?")
        return answer.producer_id, answer.producer_epoch

    return await pool.try_again(once)


def _size_of(record: NewRecord) -> int:
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"") + 4
    return size
