"""Small facts that programs publish to a cluster: the newest record of each key of a topic.

The topics have one partition and are compacted. They are created by the first record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from riverrun.client.fetcher import read_from
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST, fetch, produce
from riverrun.client.pool import ConnectionPool
from riverrun.client.producer import new_producer_id
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.record import NewRecord, Record, build_batch
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.create_topics_request import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from riverrun.wire.messages.create_topics_response import CreateTopicsResponse

REPLICAS_MAX: Final = 3
"""As other topics of the cluster itself; at most the number of nodes."""
SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.1",
}
"""Pipelines write every few seconds, so the topic is compacted early. The time of a record is the
cluster's, because clocks of hosts differ."""
CREATE_MS_MAX: Final = 10_000
FIRST_WINDOW: Final = 500
OFFSETS_MAX: Final = 100_000
BYTES_MAX: Final = 64 * 1024 * 1024
FETCH_BYTES: Final = 1024 * 1024
PARTITION: Final = 0


class StateRecord(Struct, frozen=True, kw_only=True):
    """The newest record of a key."""

    key: str
    value: bytes
    timestamp_ms: int
    offset: int


async def ensure_topic(pool: ConnectionPool, name: str) -> None:
    """Create the topic, unless it exists. Raises KafkaError."""
    found = (await pool.metadata([name])).topics[0]
    if found.error_code is ErrorCode.NONE:
        return
    if found.error_code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise KafkaError(found.error_code, f"topic {name}: {found.error_code.name}")
    message = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=min(REPLICAS_MAX, max(1, len(pool.cluster.nodes))),
                assignments=(),
                configs=tuple(
                    CreatableTopicConfig(name=key, value=value) for key, value in SETTINGS.items()
                ),
            ),
        ),
        timeout_ms=CREATE_MS_MAX,
    )
    answer: CreateTopicsResponse = await pool.request(ApiKey.CREATE_TOPICS, message)
    row = answer.topics[0]
    if row.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        raise KafkaError(
            row.error_code, f"topic {name}: {row.error_message or row.error_code.name}"
        )


class StateWriter:
    """Writes records to one topic. Idempotent: a record whose response was lost is sent again."""

    def __init__(self, pool: ConnectionPool, topic: str) -> None:
        self._pool = pool
        self._topic = topic
        self._producer: tuple[int, int] | None = None
        self._sequence = 0

    async def put(self, key: str, value: bytes | None, now_ms: int) -> int:
        """The offset of the record. None deletes the key. Raises KafkaError and OSError."""
        if self._producer is None:
            await ensure_topic(self._pool, self._topic)
            self._producer = await new_producer_id(self._pool, self._topic)
            self._sequence = 0
        batch = build_batch(
            [NewRecord(value, key.encode(), now_ms)],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequence,
        )
        try:
            done = await produce(self._pool, self._topic, PARTITION, batch)
        except (KafkaError, OSError):
            self._producer = None  # begin again, also with the topic
            raise
        self._sequence += 1
        return done.base_offset


async def end_offset(pool: ConnectionPool, topic: str) -> int:
    at = _place(topic)
    return (await offsets_at(pool, {at: LATEST}))[at]


async def records_from(pool: ConnectionPool, topic: str, offset: int) -> tuple[list[Record], int]:
    """The next records, and the position after them. Does not wait for any."""
    found = await fetch(
        pool, topic, PARTITION, offset, max_bytes=FETCH_BYTES, max_wait_ms=0, min_bytes=0
    )
    return read_from(found.records, offset)


async def read_states(pool: ConnectionPool, topic: str) -> dict[str, StateRecord]:
    """The newest record of each key, without deleted ones. Empty if there is no topic.

    The topic is read from its end, in growing windows, so that old records of a topic that was not
    compacted yet do not matter.
    """
    found = (await pool.metadata([topic])).topics[0]
    if found.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    if found.error_code is not ErrorCode.NONE:
        raise KafkaError(found.error_code, f"topic {topic}: {found.error_code.name}")
    at = _place(topic)
    end = (await offsets_at(pool, {at: LATEST}))[at]
    start = max((await offsets_at(pool, {at: EARLIEST}))[at], end - OFFSETS_MAX)
    newest: dict[str, Record] = {}
    high, window, size = end, FIRST_WINDOW, 0
    while high > start and size < BYTES_MAX:
        low = max(start, high - window)
        records = await _between(pool, topic, low, high)
        for record in reversed(records):
            size += len(record.value or b"")
            newest.setdefault((record.key or b"").decode("utf-8", "replace"), record)
        high, window = low, window * 2
    return {
        key: StateRecord(
            key=key, value=record.value, timestamp_ms=record.timestamp, offset=record.offset
        )
        for key, record in newest.items()
        if record.value is not None
    }


async def _between(pool: ConnectionPool, topic: str, low: int, high: int) -> list[Record]:
    found: list[Record] = []
    position = low
    while position < high:
        records, after = await records_from(pool, topic, position)
        found += [record for record in records if record.offset < high]
        if after == position:
            break  # a new leader has fewer records
        position = after
    return found


def _place(topic: str) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(PARTITION))
