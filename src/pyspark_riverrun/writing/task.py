"""The work of one write task: rows in, a commit message for the driver out.

At least once, the records are visible as soon as they are written. Exactly once, the task leaves
its transaction open and describes it in the message. A task of a batch that was decided before
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_riverrun.arrow.arrays import int32_values, integer_array, is_valid
from pyspark_riverrun.arrow.encode import Rows, payloads
from pyspark_riverrun.cluster.link import BrokerLink, freeze_heap, link_to
from pyspark_riverrun.delivery.record import Delivery, OpenTransaction, next_version, task_id
from pyspark_riverrun.offsets import topic_partition
from pyspark_riverrun.options import WriteOptions
from pyspark_riverrun.writing.partitioning import partitions_of_keys
from pyspark_riverrun.writing.task_producer import TaskProducer
from riverrun.ports.randomness import SystemRandomness


class BadRow(ValueError):
    """A row cannot be written. The text gives the reason."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The records that a task has written."""

    records: int
    offsets: tuple[tuple[str, int, int, int], ...]
    """(topic, partition, first offset, end offset)."""
    transaction: OpenTransaction | None = None
    """None at least once, and for a task without records."""
    application: str | None = None
    log_start: int | None = None
    """Where the driver starts to read the log of deliveries."""
    is_decided: bool = False
    """Whether the batch was decided before, so that the task wrote nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSlot:
    """Which task this is, for its transactional id."""

    application: str
    job: str
    """Distinguishes the jobs of one delivery, whose tasks have the same numbers."""
    partition: int = 0
    attempt: int = 0
    version: int | None = None
    """The delivery, if it may have been decided before."""

    @classmethod
    def current(cls, application: str, job: str, version: int | None = None) -> TaskSlot:
        context = TaskContext.get()
        return cls(
            application=application,
            job=job,
            partition=0 if context is None else context.partitionId(),
            attempt=0 if context is None else context.attemptNumber(),
            version=version,
        )

    @property
    def transactional_id(self) -> str:
        return task_id(self.application, self.job, self.partition, self.attempt)


def write_all(options: WriteOptions, tables: Iterator[pa.RecordBatch]) -> TaskCommit:
    """Write rows at least once. Returns when all records are acknowledged."""
    producer = TaskProducer(link_to(options.cluster), options)
    try:
        _send_all(producer, options, tables)
    finally:
        producer.close()
    freeze_heap()
    return _commit_of(producer)


def write_in_transaction(
    options: WriteOptions, tables: Iterator[pa.RecordBatch], slot: TaskSlot
) -> TaskCommit:
    """Write rows in a transaction that stays open. A failed task aborts it."""
    link = link_to(options.cluster)
    log_start = None
    if slot.version is not None:
        last, log_start = _last_delivery(link, slot.application)
        if next_version(last, slot.version) is None:
            for _ in tables:
                pass  # Spark waits until a task has read its input
            return TaskCommit(0, (), None, slot.application, log_start, is_decided=True)
    producer = TaskProducer(link, options, slot.transactional_id)
    try:
        _send_all(producer, options, tables)
    except BaseException:
        producer.close()
        producer.abort()
        raise
    producer.close()
    freeze_heap()
    return _commit_of(producer, slot.application, log_start)


def _last_delivery(link: BrokerLink, application: str) -> tuple[Delivery | None, int | None]:
    async def read() -> tuple[Delivery | None, int | None]:
        log = link.delivery_log(application)
        return await log.read(), log.start

    return link.run(read())


def _send_all(
    producer: TaskProducer, options: WriteOptions, tables: Iterator[pa.RecordBatch]
) -> None:
    router = _RowRouter(producer)
    for table in tables:
        for topic, part in _by_topic(table, options.topic):
            router.send(topic, part)
    producer.flush()


def _commit_of(
    producer: TaskProducer, application: str | None = None, log_start: int | None = None
) -> TaskCommit:
    return TaskCommit(
        records=sum(one.records for one in producer.written.values()),
        offsets=tuple(
            (at.topic, at.partition, one.first_offset, one.end_offset)
            for at, one in sorted(producer.written.items())
        ),
        transaction=producer.transaction,
        application=application,
        log_start=log_start,
    )


def _by_topic(table: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split rows by topic. The option wins over the column, as in the connector."""
    if topic is not None:
        yield topic, table
        return
    names = table.column("topic")
    if names.null_count:
        raise BadRow("the topic of a row is null")
    coded = names.dictionary_encode()
    topics = coded.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], table
        return
    codes = int32_values(coded.indices)
    for code, name in enumerate(topics):
        yield name, table.take(integer_array(np.flatnonzero(codes == code), pa.int64()))


def _check_headers(headers: pa.Array | None) -> None:
    """Reject headers without a name, which readers could not skip."""
    if headers is None:
        return
    pairs = headers.flatten()
    if pairs.null_count:
        raise BadRow("a row has a null header")
    if pairs.field(0).null_count:
        raise BadRow("a row has a header with a null name")


class _RowRouter:
    """Chooses the partition of each row."""

    def __init__(self, producer: TaskProducer) -> None:
        self._producer = producer
        self._next_partition = SystemRandomness().below(2**31)

    def send(self, topic: str, table: pa.RecordBatch) -> None:
        names = table.schema.names
        rows = Rows(
            key=table.column("key") if "key" in names else None,
            value=table.column("value"),
            headers=table.column("headers") if "headers" in names else None,
        )
        _check_headers(rows.headers)
        given = table.column("partition") if "partition" in names else None
        partitions = self._partitions(topic, rows, given)
        for payload in payloads(rows, partitions, self._producer.batch_bytes_target(topic)):
            self._producer.send(topic_partition(topic, payload.partition), payload)

    def _partitions(self, topic: str, rows: Rows, given: pa.Array | None) -> npt.NDArray[np.int64]:
        """By the column, else by the key, else all rows of a call to one partition, in rotation."""
        count = self._producer.partition_count(topic)
        self._next_partition += 1
        partitions = np.full(len(rows.value), self._next_partition % count, np.int64)
        if rows.key is not None and count > 1:
            partitions = np.where(
                is_valid(rows.key), partitions_of_keys(rows.key, count), partitions
            )
        if given is not None:
            is_given = is_valid(given)
            chosen = np.where(is_given, int32_values(given), 0)
            wrong = np.flatnonzero((chosen < 0) | (chosen >= count))
            if len(wrong):
                raise BadRow(
                    f"a row has partition {chosen[wrong[0]]}, but topic {topic} has partitions "
                    f"0 to {count - 1}"
                )
            partitions = np.where(is_given, chosen, partitions)
        return partitions
