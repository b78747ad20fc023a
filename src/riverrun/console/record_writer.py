"""Writes records that arrive over HTTP, and reports the position of each one.

A writer belongs to one request. It is idempotent: a batch whose response was lost is sent again and
not written twice. A failure concerns the records of one batch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from riverrun.client.partitioner import StickyChoice, partition_of_key
from riverrun.client.partitions import Produced, produce
from riverrun.client.pool import ConnectionPool
from riverrun.client.producer import BATCH_BYTES, SEQUENCES, new_producer_id, size_of
from riverrun.console.problems import partition_failure
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.ports.randomness import SystemRandomness
from riverrun.records.record import NewRecord, build_batch

REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
RECORDS_PER_BATCH_MAX: Final = 1_000


class OutgoingRecord(Struct, frozen=True, kw_only=True):
    """A record, with the partition that the client chose or None."""

    record: NewRecord
    partition: int | None = None


class WrittenRecord(Struct, frozen=True, kw_only=True):
    """The position of a record in the log."""

    partition: int
    offset: int
    timestamp_ms: int


Outcome = WrittenRecord | KafkaError | OSError
Numbered = list[tuple[int, NewRecord]]
"""Records with their numbers in the group that is written."""


class RestRecordWriter:
    """Writes to one topic. ``partitions`` are the indexes of its partitions."""

    def __init__(self, pool: ConnectionPool, topic: str, partitions: Iterable[int]) -> None:
        self._pool = pool
        self._topic = topic
        self._partitions = sorted(partitions)
        self._sticky = StickyChoice(self._partitions, SystemRandomness())
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    async def write(self, records: Sequence[OutgoingRecord]) -> list[Outcome]:
        """Write a group of records and wait until all in-sync replicas have them. The outcomes are
        in the order of the records."""
        outcomes: dict[int, Outcome] = {}
        by_partition: dict[int, Numbered] = {}
        for number, one in enumerate(records):
            partition = self._partition_of(one)
            if partition is None:
                text = f"topic {self._topic} has no partition {one.partition}"
                outcomes[number] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            else:
                by_partition.setdefault(partition, []).append((number, one.record))
        self._sticky.move()
        if by_partition and self._producer is None:
            try:
                self._producer = await new_producer_id(self._pool)
            except (KafkaError, OSError) as failure:
                return [outcomes.get(number, failure) for number in range(len(records))]
            self._sequences = {}
        await run_together(
            self._write_partition(partition, rows, outcomes)
            for partition, rows in by_partition.items()
        )
        return [outcomes[number] for number in range(len(records))]

    def _partition_of(self, one: OutgoingRecord) -> int | None:
        if one.partition is not None:
            return one.partition if one.partition in self._partitions else None
        if one.record.key is None:
            return self._sticky.current
        return partition_of_key(one.record.key, len(self._partitions))

    async def _write_partition(
        self, partition: int, rows: Numbered, outcomes: dict[int, Outcome]
    ) -> None:
        pending = _batches(rows)
        while pending:
            part = pending.pop(0)
            try:
                produced = await self._send(partition, part)
            except (KafkaError, OSError) as failure:
                if _is_too_large(failure) and len(part) > 1:
                    # The topic's limit is smaller than our batch. The broker has written nothing.
                    middle = len(part) // 2
                    pending[:0] = [part[:middle], part[middle:]]
                    continue
                # The log may have the batch. A new producer id starts new sequences.
                self._producer = None
                failure = self._explained(failure, partition)
                for number, _ in part:
                    outcomes[number] = failure
                for later in pending:
                    outcomes.update(dict.fromkeys((number for number, _ in later), failure))
                return
            for delta, (number, record) in enumerate(part):
                appended_ms = produced.log_append_time_ms
                outcomes[number] = WrittenRecord(
                    partition=partition,
                    offset=produced.base_offset + delta,
                    timestamp_ms=record.timestamp if appended_ms < 0 else appended_ms,
                )

    def _explained(self, failure: KafkaError | OSError, partition: int) -> KafkaError | OSError:
        if isinstance(failure, KafkaError) and failure.code is REFUSED:
            at = TopicPartition(TopicName(self._topic), PartitionIndex(partition))
            return partition_failure(failure.code, at, "Write")
        return failure

    async def _send(self, partition: int, part: Numbered) -> Produced:
        producer = self._producer
        if producer is None:
            text = "another batch of the same request failed"
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, text)
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            [record for _, record in part],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
        produced = await produce(self._pool, self._topic, partition, batch)
        self._sequences[partition] = (sequence + len(part)) % SEQUENCES
        return produced


def _is_too_large(failure: KafkaError | OSError) -> bool:
    return isinstance(failure, KafkaError) and failure.code is ErrorCode.MESSAGE_TOO_LARGE


def _batches(rows: Numbered) -> list[Numbered]:
    """Split records so that no batch is larger than a topic usually takes."""
    made: list[Numbered] = [[]]
    size = 0
    for number, record in rows:
        added = size_of(record)
        if made[-1] and (size + added > BATCH_BYTES or len(made[-1]) >= RECORDS_PER_BATCH_MAX):
            made.append([])
            size = 0
        made[-1].append((number, record))
        size += added
    return made
