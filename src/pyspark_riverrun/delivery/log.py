"""The topic that stores the last delivery of each application.

It is compacted by application, and has as many replicas as transaction state has in Kafka. Drivers
write to it in transactions, so that a driver that was replaced can store nothing.

Many applications share a partition. A driver that dies may leave a transaction open there, and
the last stable offset stays at its start until it times out. Other applications must not wait for
it, so they also read above the last stable offset, and use the records of transactions that have
a commit marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_riverrun.arrow.decode import FetchedBatches, readable
from pyspark_riverrun.delivery.record import Delivery, decode_delivery
from pyspark_riverrun.offsets import topic_partition
from riverrun.client.offsets import offsets_at
from riverrun.client.partitioner import partition_of_key
from riverrun.client.partitions import EARLIEST, fetch
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.records.batch import BatchHeader, batches
from riverrun.records.record import ControlType, Record, read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse

TOPIC: Final = "__riverrun_deliveries"
PARTITIONS: Final = 16
REPLICAS_MAX: Final = 3
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A delivery has some 100 bytes for each task and each partition that the task wrote to."""
SEGMENT_BYTES: Final = 4 * 1024 * 1024
"""Small, so that compaction keeps the log short. A new driver reads all of it."""
FETCH_BYTES: Final = 4 * 1024 * 1024
CREATE_TIMEOUT_MS: Final = 30_000

_Change = tuple[int, Delivery | None]
"""The offset of a record, and its delivery; None for a tombstone."""


@dataclass(slots=True)
class DeliveryLog:
    """Reads the deliveries of one application. Used in the event loop."""

    pool: ConnectionPool
    application: str
    position: int | None = None
    """Everything before it was read, or cannot be of interest."""
    last: Delivery | None = None
    """The last delivery that was read. ``read`` may return a newer one."""
    offset: int | None = None
    """The offset of the record of ``last``."""

    @property
    def at(self) -> TopicPartition:
        return topic_partition(TOPIC, partition_of_key(self.application.encode(), PARTITIONS))

    @property
    def start(self) -> int | None:
        """Where another reader may start without missing the last delivery."""
        return self.position if self.offset is None else self.offset

    async def create(self) -> None:
        """Create the topic unless it exists. Raises KafkaError if it is not as expected."""
        if not await self.exists():
            await self.pool.try_again(self._create)
            await self.pool.try_again(self._find_leader)
        count = len(self.pool.cluster.topics[TOPIC].partitions)
        if count < PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"topic {TOPIC} has {count} partitions, but needs {PARTITIONS}",
            )

    async def exists(self) -> bool:
        if TOPIC in self.pool.cluster.topics:
            return True

        async def once() -> bool:
            row = (await self.pool.metadata([TOPIC])).topics[0]
            if row.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.pool.cluster.topics.pop(TOPIC, None)
                return False
            if row.error_code is not ErrorCode.NONE:
                raise KafkaError(row.error_code, f"topic {TOPIC}: {row.error_code.name}")
            return True

        return await self.pool.try_again(once)

    async def read(self) -> Delivery | None:
        """The last committed delivery; None if the application has none."""
        if not await self.exists():
            return None
        try:
            return await self._read()
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self.position = self.offset = self.last = None  # the topic was recreated
            return await self._read()

    async def _read(self) -> Delivery | None:
        if self.position is None:
            self.position = (await offsets_at(self.pool, {self.at: EARLIEST}))[self.at]
        end = await self._read_stable()
        return await self._read_unstable(end)

    async def _read_stable(self) -> int:
        """Read to the last stable offset, and return the high watermark."""
        while True:
            assert self.position is not None, "set by the first read"
            found = await fetch(
                self.pool,
                self.at.topic,
                self.at.partition,
                self.position,
                max_bytes=FETCH_BYTES,
                max_wait_ms=0,
                min_bytes=0,
                is_committed_only=True,
            )
            headers = list(batches(found.records))
            kept = FetchedBatches(data=found.records, headers=headers, aborted=found.aborted)
            for at, header in readable(kept):
                for offset, delivery in self._changes(found.records, at, header):
                    if offset >= self.position:
                        self.last, self.offset = delivery, offset
            if headers:
                self.position = max(self.position, headers[-1][1].next_offset)
            if not headers or self.position >= found.last_stable_offset:
                return found.high_watermark

    async def _read_unstable(self, end: int) -> Delivery | None:
        """Read from the last stable offset to the high watermark, without moving ``position``."""
        last, position = self.last, self.position or 0
        open_: dict[int, list[_Change]] = {}
        while position < end:
            found = await fetch(
                self.pool,
                self.at.topic,
                self.at.partition,
                position,
                max_bytes=FETCH_BYTES,
                max_wait_ms=0,
                min_bytes=0,
            )
            headers = list(batches(found.records))
            if not headers:
                break
            for at, header in headers:
                if header.next_offset <= position:
                    continue
                if not header.is_control:
                    changes = self._changes(found.records, at, header)
                    open_.setdefault(header.producer_id, []).extend(changes)
                    continue
                ended = open_.pop(header.producer_id, [])
                if ended and _is_commit(found.records, at, header):
                    last = ended[-1][1]
            position = headers[-1][1].next_offset
        return last

    def _changes(self, data: bytes, at: int, header: BatchHeader) -> list[_Change]:
        key = self.application.encode()
        records: list[Record] = read_records(memoryview(data)[at : at + header.size])
        return [
            (one.offset, None if one.value is None else decode_delivery(one.value))
            for one in records
            if one.key == key
        ]

    async def _create(self) -> None:
        await self.pool.metadata(())
        replicas = min(REPLICAS_MAX, len(self.pool.cluster.nodes))
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
            "min.insync.replicas": str(max(1, replicas - 1)),
        }
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=PARTITIONS,
            replication_factor=replicas,
            assignments=(),
            configs=tuple(
                CreatableTopicConfig(name=name, value=value) for name, value in settings.items()
            ),
        )
        message = CreateTopicsRequest(topics=(topic,), timeout_ms=CREATE_TIMEOUT_MS)
        response: CreateTopicsResponse = await self.pool.request(ApiKey.CREATE_TOPICS, message)
        row = response.topics[0]
        if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            text = row.error_message or row.error_code.name
            raise KafkaError(row.error_code, f"topic {TOPIC}: {text}")

    async def _find_leader(self) -> None:
        """A new topic is not known to all nodes at once."""
        self.pool.cluster.topics.pop(TOPIC, None)
        await self.pool.leader(self.at.topic, self.at.partition)


def _is_commit(data: bytes, at: int, header: BatchHeader) -> bool:
    records = read_records(memoryview(data)[at : at + header.size])
    return bool(records) and ControlType.of(records[0].key) is ControlType.COMMIT
