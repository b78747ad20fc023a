"""Writes rows to topics, in batches and in streams.

Columns are those of Spark's Kafka sink: value, and optionally key, topic, partition and headers.
By default rows are written at least once: a task or batch that Spark repeats is written again.
With ``kafka.delivery=exactly-once`` tasks write in transactions, and the driver decides about all
of them together (see ``delivery``). Spark calls tasks, ``commit`` and ``abort`` in different
processes, which share only the messages of the tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
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

from pyspark_riverrun.cluster.link import link_to
from pyspark_riverrun.delivery.driver import DeliveryDriver, abort_strays
from pyspark_riverrun.delivery.log import DeliveryLog
from pyspark_riverrun.delivery.record import next_version, transactions_of
from pyspark_riverrun.delivery.requests import end_transaction
from pyspark_riverrun.options import BadOption, WriteOptions
from pyspark_riverrun.writing.task import TaskCommit, TaskSlot, write_all, write_in_transaction

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
JOB: Final = "rows"
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
ABORT_S_MAX: Final = 30.0


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
        # Spark copies the writer to the tasks and to ``commit``.
        self._application = options.application or f"batch-{uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_exactly_once:
            return write_all(self._options, iterator)
        slot = TaskSlot.current(self._application, JOB, self._options.version)
        return write_in_transaction(self._options, iterator, slot)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """At least once, all records are already visible."""
        if self._options.is_exactly_once:
            _commit(
                self._options,
                self._application,
                self._options.version,
                messages,
                is_repeatable=self._options.application is not None,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """At least once, written records stay, because a log cannot remove them."""
        if self._options.is_exactly_once:
            _abort(self._options, self._application, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("riverrun")``."""

    def __init__(self, options: WriteOptions) -> None:
        if options.version is not None:
            raise BadOption("txnVersion is for batch writes; a stream numbers its batches itself")
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_exactly_once:
            return write_all(self._options, iterator)
        context = TaskContext.get()
        assert context is not None, "Spark runs the task"
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        assert query is not None and batch is not None, "Spark sets them for streams"
        slot = TaskSlot.current(self._options.application or query, JOB, int(batch))
        return write_in_transaction(self._options, iterator, slot)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """At least once, all records are already visible."""
        application = _application_of(messages)
        if application is not None:
            _commit(self._options, application, batchId, messages, is_repeatable=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """At least once, written records stay, because a log cannot remove them."""
        application = _application_of(messages)
        if application is not None:
            _abort(self._options, application, messages)


def _application_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """Only tasks know the id of the query. None at least once, and if all tasks have failed."""
    found = (one.application for one in messages if isinstance(one, TaskCommit))
    return next((name for name in found if name is not None), None)


def _commit(
    options: WriteOptions,
    application: str,
    version: int | None,
    messages: Sequence[WriterCommitMessage | None],
    *,
    is_repeatable: bool,
) -> None:
    """Raises DeliveryFenced and DeliveryLost."""
    commits = [one for one in messages if isinstance(one, TaskCommit)]
    transactions = transactions_of(one.transaction for one in commits)
    link = link_to(options.cluster)
    starts = [one.log_start for one in commits if one.log_start is not None]

    async def decide() -> None:
        log = DeliveryLog(link.pool, application, max(starts, default=None))
        timeout_ms = options.transaction_timeout_ms
        driver = await DeliveryDriver.open(link.pool, log, timeout_ms=timeout_ms)
        decided = next_version(driver.last, version)
        if decided is None:
            await driver.abort(transactions)
        elif transactions:
            await driver.decide(decided, transactions)
        await abort_strays(link.pool, application, timeout_ms=timeout_ms)
        if not is_repeatable:
            await driver.forget()

    if transactions or any(one.is_decided for one in commits):
        link.run(decide())


def _abort(
    options: WriteOptions, application: str, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Abort the transactions of all tasks, also of those that died.

    Spark also calls it if ``commit`` has failed. A delivery that was decided is left alone then,
    because the next driver finishes it.
    """
    link = link_to(options.cluster)
    transactions = transactions_of(
        one.transaction for one in messages if isinstance(one, TaskCommit)
    )

    async def abort() -> None:
        last = await DeliveryLog(link.pool, application).read()
        kept = () if last is None else last.transactions
        for one in transactions:
            if one not in kept:
                await end_transaction(link.pool, one, is_commit=False)
        await abort_strays(link.pool, application, kept, timeout_ms=options.transaction_timeout_ms)

    link.run(asyncio.wait_for(abort(), ABORT_S_MAX))
