"""Writes rows to topics, in batches and in streams.

Columns are those of Spark's Kafka sink: value, and optionally key, topic, partition and headers.
Each task has its own idempotent producer. A task or batch that Spark repeats is written again.

The interfaces already have the two phases of an exactly-once sink, although brokers have no
transactions yet: the message of a task contains what a driver needs to end its transaction (the
transactional id, producer id and epoch), and ``commit`` is where the driver would record the
decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from pyspark_riverrun.arrow.arrays import int32_values, integer_array, is_valid
from pyspark_riverrun.arrow.encode import Rows, payloads
from pyspark_riverrun.cluster.link import freeze_heap, link_to
from pyspark_riverrun.offsets import topic_partition
from pyspark_riverrun.options import BadOption, WriteOptions
from pyspark_riverrun.writing.partitioning import partitions_of_keys
from pyspark_riverrun.writing.task_producer import TaskProducer
from riverrun.ports.randomness import SystemRandomness

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
ALLOWED: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (HEADERS,),
}


class BadRow(ValueError):
    """A row cannot be written. The text gives the reason."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The records that a task has written, and its producer."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    """None without transactions."""
    records: int
    offsets: tuple[tuple[str, int, int, int], ...]
    """(topic, partition, first offset, end offset)."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raises BadOption."""
    names = schema.fieldNames()
    if "value" not in names:
        raise BadOption(f"a column value is required; found {', '.join(names)}")
    if options.topic is None and "topic" not in names:
        raise BadOption("set the option topic, or add a column topic")
    for field in schema.fields:
        allowed = ALLOWED.get(field.name)
        if allowed is None:
            raise BadOption(
                f"a topic has no column {field.name}, only {', '.join(ALLOWED)}. Put other "
                "columns into the value, for example with to_json(struct(*))"
            )
        if not any(_is_same_type(field.dataType, one) for one in allowed):
            wanted = " or ".join(one.simpleString() for one in allowed)
            found = field.dataType.simpleString()
            raise BadOption(f"the column {field.name} must be {wanted}, not {found}")


def _is_same_type(found: DataType, wanted: DataType) -> bool:
    """Whether types are equal apart from nullability."""
    return found.simpleString() == wanted.simpleString()


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("riverrun").mode("append")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All records are already acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Written records stay, because a log cannot remove them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("riverrun")``: at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All records are already acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Written records stay, because a log cannot remove them."""


def write_all(options: WriteOptions, tables: Iterator[pa.RecordBatch]) -> TaskCommit:
    """The work of one task. Returns when all records are acknowledged."""
    producer = TaskProducer(link_to(options.cluster), options)
    try:
        router = _RowRouter(producer)
        for table in tables:
            for topic, part in _by_topic(table, options.topic):
                router.send(topic, part)
        producer.flush()
    finally:
        producer.close()
    freeze_heap()
    return TaskCommit(
        producer_id=producer.identity.producer_id,
        producer_epoch=producer.identity.epoch,
        transactional_id=None,
        records=sum(one.records for one in producer.written.values()),
        offsets=tuple(
            (at.topic, at.partition, one.first_offset, one.end_offset)
            for at, one in sorted(producer.written.items())
        ),
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
