"""Writing rows to topics, in batches and streams: columns in, batches of records out.

Columns as Spark's Kafka sink has them: value, and perhaps key, topic, partition and headers. Each
task has an idempotent producer of its own; a task or a batch that Spark runs again writes again.

The two phases of an exactly-once sink are laid out here, though brokers have no transactions yet:
tasks report in a message what a driver would need to end their transactions by itself (the
transactional id, producer id and epoch), and ``commit`` is where the decision would be recorded.
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

from pyspark_riverrun.arrow.arrays import is_valid, numbers, values_of
from pyspark_riverrun.arrow.encode import Rows, payloads
from pyspark_riverrun.cluster.link import link_to, settle
from pyspark_riverrun.offsets import place
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
    """A row that cannot be written; the text says why."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What a task has written, and who it was for the brokers."""

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    """None as long as there are no transactions: then nothing is left to be ended."""
    records: int
    offsets: tuple[tuple[str, int, int, int], ...]
    """(topic, partition, first offset, end offset)."""


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raises BadOption."""
    names = schema.fieldNames()
    if "value" not in names:
        raise BadOption(f"a column value is needed; there are {', '.join(names)}")
    if options.topic is None and "topic" not in names:
        raise BadOption("say where to write: by the option topic, or by a column topic")
    for field in schema.fields:
        allowed = ALLOWED.get(field.name)
        if allowed is None:
            raise BadOption(
                f"a topic has no column {field.name}; there are {', '.join(ALLOWED)}. Put more "
                "into the value, for example by to_json(struct(*))"
            )
        if not any(_is_like(field.dataType, one) for one in allowed):
            wanted = " or ".join(one.simpleString() for one in allowed)
            found = field.dataType.simpleString()
            raise BadOption(f"the column {field.name} is {wanted}, not {found}")


def _is_like(found: DataType, wanted: DataType) -> bool:
    """Equal but for what may be null."""
    return found.simpleString() == wanted.simpleString()


class BatchWriter(DataSourceArrowWriter):
    """``df.write.format("riverrun").mode("append")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All is written and acknowledged already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was written stays: a log takes nothing back."""


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("riverrun")``: at least once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_all(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All is written and acknowledged already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was written stays: a log takes nothing back."""


def write_all(options: WriteOptions, tables: Iterator[pa.RecordBatch]) -> TaskWritten:
    """The work of one task: returns when all is acknowledged."""
    producer = TaskProducer(link_to(options.cluster), options)
    try:
        placing = _Placing(producer)
        for table in tables:
            for topic, part in _by_topic(table, options.topic):
                placing.send(topic, part)
        producer.flush()
    finally:
        producer.close()
    settle()
    return TaskWritten(
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
    """The option wins over the column, as in the connector."""
    if topic is not None:
        yield topic, table
        return
    names = table.column("topic")
    if names.null_count:
        raise BadRow("a row has null for its topic")
    coded = names.dictionary_encode()
    topics = coded.dictionary.to_pylist()
    if len(topics) == 1:
        yield topics[0], table
        return
    codes = values_of(coded.indices)
    for code, name in enumerate(topics):
        yield name, table.take(numbers(np.flatnonzero(codes == code), pa.int64()))


def _check_headers(headers: pa.Array | None) -> None:
    """A header without a name has no place in a record: readers would stop at it for ever."""
    if headers is None:
        return
    pairs = headers.flatten()
    if pairs.null_count:
        raise BadRow("a row has null among its headers")
    if pairs.field(0).null_count:
        raise BadRow("a row has a header whose name is null")


class _Placing:
    """Gives rows their partitions."""

    def __init__(self, producer: TaskProducer) -> None:
        self._producer = producer
        self._turn = SystemRandomness().below(2**31)

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
        for payload in payloads(rows, partitions, self._producer.room(topic)):
            self._producer.send(place(topic, payload.partition), payload)

    def _partitions(self, topic: str, rows: Rows, given: pa.Array | None) -> npt.NDArray[np.int64]:
        """By the column, else by the key, else all of them to one partition, another each time."""
        count = self._producer.partition_count(topic)
        self._turn += 1
        placed = np.full(len(rows.value), self._turn % count, np.int64)
        if rows.key is not None and count > 1:
            placed = np.where(is_valid(rows.key), partitions_of_keys(rows.key, count), placed)
        if given is not None:
            is_given = is_valid(given)
            chosen = np.where(is_given, values_of(given), 0)
            wrong = np.flatnonzero((chosen < 0) | (chosen >= count))
            if len(wrong):
                raise BadRow(
                    f"a row has partition {chosen[wrong[0]]}, but topic {topic} has {count}, "
                    f"from 0 to {count - 1}"
                )
            placed = np.where(is_given, chosen, placed)
        return placed
