"""Writes records to topics, exactly once or at least once.

Exactly once, executors write in transactions and leave them open. All jobs of a batch, rows and
dead letters, are one delivery: its decision commits their transactions and stores the progress of
the sink, as a commit of a table does. See ``pyspark_riverrun.delivery``.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_riverrun.cluster.link import BrokerLink, link_to
from pyspark_riverrun.delivery.driver import DeliveryDriver, abort_strays
from pyspark_riverrun.delivery.log import DeliveryLog
from pyspark_riverrun.delivery.record import DeliveryLost, OpenTransaction, next_version
from pyspark_riverrun.options import WriteOptions, write_options
from pyspark_riverrun.source import FORMAT
from pyspark_riverrun.writing.task import TaskCommit, TaskSlot, write_in_transaction
from pyspark_riverrun.writing.writer import check_schema
from riverrun.client.connection import UnsupportedApi
from riverrun.model.errors import KafkaError
from riverrun.pipeline.declaration.model import TopicSink
from riverrun.pipeline.errors import CannotContinue
from riverrun.pipeline.offsets import StoredProgress, TableProgress, parse_progress
from riverrun.pipeline.sinks.row_counts import observed_count, with_count

RECORD_COLUMNS: Final = ("key", "value", "headers", "topic", "partition")
MESSAGE: Final = "message"
MESSAGE_DDL: Final = f"{MESSAGE} binary"
ABORT_S_MAX: Final = 10.0


class RecordWriter(Protocol):
    def write(self, records: DataFrame, topic: str) -> int:
        """Write records to a topic. Returns their number."""


def records_of(rows: DataFrame, sink: TopicSink) -> DataFrame:
    """Rows as records: unchanged if they have the columns of records, otherwise as JSON."""
    if "value" in rows.columns and all(name in RECORD_COLUMNS for name in rows.columns):
        return rows
    key = F.lit(None).cast("string") if sink.key is None else F.col(sink.key).cast("string")
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
    return rows.select(key.alias("key"), value.alias("value"))


class PlainWriter:
    """At least once: a repeated batch is written again."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, records: DataFrame, topic: str) -> int:
        records, observation = with_count(records)
        writer = records.write.format(FORMAT).options(**self._options)
        writer.option("topic", topic).mode("append").save()
        return observed_count(observation) or 0


class TopicDelivery:
    """The deliveries of one sink, one for each batch. Created by ``open``."""

    def __init__(
        self,
        options: Mapping[str, str],
        cluster: WriteOptions,
        application: str,
        driver: DeliveryDriver,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._application = application
        self._driver = driver
        self._staged: list[OpenTransaction] = []
        self._jobs = 0

    @classmethod
    def open(cls, options: Mapping[str, str], application: str) -> TopicDelivery:
        """Fence older drivers of the sink and finish their last batch.

        Raises CannotContinue if that batch can neither be finished nor repeated.
        """
        cluster = write_options({**options, "kafka.delivery": "exactly-once"})
        link = link_to(cluster.cluster)
        timeout_ms = cluster.transaction_timeout_ms

        async def opened() -> DeliveryDriver:
            log = DeliveryLog(link.pool, application)
            driver = await DeliveryDriver.open(link.pool, log, timeout_ms=timeout_ms)
            await abort_strays(link.pool, application, timeout_ms=timeout_ms)
            return driver

        try:
            return cls(options, cluster, application, link.run(opened()))
        except DeliveryLost as error:
            raise CannotContinue(str(error)) from error
        except UnsupportedApi as error:
            raise CannotContinue(
                f"the cluster has no transactions ({error}). Set delivery = "
                '"at-least-once" in [pipeline.client]'
            ) from error

    @property
    def stored_progress(self) -> StoredProgress:
        """The progress at the last decision."""
        last = self._driver.last
        if last is None or last.progress is None:
            return StoredProgress()
        return parse_progress(last.progress)

    @property
    def is_staged(self) -> bool:
        """Whether records were written that are not committed."""
        return bool(self._staged)

    def write(self, records: DataFrame, topic: str) -> int:
        """Write records that no reader sees before ``commit``."""
        options = write_options({**self._options, "kafka.delivery": "exactly-once", "topic": topic})
        check_schema(records.schema, options)
        application, job = self._application, str(self._jobs)
        self._jobs += 1

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            written = write_in_transaction(options, batches, TaskSlot.current(application, job))
            message = pa.array([pickle.dumps(written)], pa.binary())
            yield pa.RecordBatch.from_arrays([message], names=[MESSAGE])

        found = [
            pickle.loads(bytes(row[MESSAGE]))
            for row in records.mapInArrow(write, MESSAGE_DDL).collect()
        ]
        commits = [each for each in found if isinstance(each, TaskCommit)]
        self._staged += [one.transaction for one in commits if one.transaction is not None]
        return sum(one.records for one in commits)

    def commit(self, progress: TableProgress) -> None:
        """Make the records visible and store the progress, both or neither.

        Raises DeliveryFenced. If it fails, the next ``open`` finds out what was decided.
        """
        staged, self._staged, self._jobs = self._staged, [], 0
        link = self._link
        version = next_version(self._driver.last, None)
        assert version is not None, "only a wanted version can be an old one"

        async def decide() -> None:
            await self._driver.decide(version, staged, progress.to_json())
            await abort_strays(
                link.pool, self._application, timeout_ms=self._cluster.transaction_timeout_ms
            )

        try:
            link.run(decide())
        except DeliveryLost as error:
            raise CannotContinue(str(error)) from error

    def abort(self) -> None:
        """Abort a failed batch if the cluster answers in time. ``open`` aborts the rest."""
        staged, self._staged, self._jobs = self._staged, [], 0
        work = self._driver.abort(staged)
        with contextlib.suppress(KafkaError, OSError):
            self._link.run(asyncio.wait_for(work, ABORT_S_MAX))

    @property
    def _link(self) -> BrokerLink:
        return link_to(self._cluster.cluster)
