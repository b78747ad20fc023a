"""Writes the rows of a batch to a table: executors write files, the driver commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from riverrun.pipeline.declaration.model import TableSink
from riverrun.pipeline.offsets import MicroBatch, SourcePartition, TableProgress
from riverrun.pipeline.sinks.tables.attempt import TableAttempt, open_table
from riverrun.pipeline.sinks.tables.data_files import LISTED_DDL, WrittenFile, write_files
from riverrun.pipeline.sinks.tables.delta import DeltaAttempt
from riverrun.pipeline.sinks.tables.schema_evolution import conflicts, evolve, plain_schema
from riverrun.pipeline.sources.parsing import REASON

DELETED = "_is_deleted"
ARRIVAL = "_offset"
"""The default order of a merge. Offsets compare only within one partition, whose changes reach the
table once and in order. They are therefore never compared with rows of the table.
"""


@contextmanager
def open_sink(sink: TableSink) -> Iterator[TableAttempt]:
    """Open the sink's table for one attempt, and close it at the end."""
    options = {} if sink.catalog is None else {"catalog": sink.catalog}
    attempt = open_table(sink.format, sink.path, name=sink.table, options=options)
    try:
        yield attempt
    finally:
        attempt.close()


def split_by_fit(rows: DataFrame, attempt: TableAttempt) -> tuple[DataFrame, DataFrame | None]:
    """Rows that fit the table's columns, and rows that do not, with the reason.

    Usually all fit, because values were read with a schema. The schema may have changed since.
    """
    found = conflicts(attempt.schema, _arrow_schema(rows), attempt.promotions)
    if not found:
        return rows, None
    rows = rows.persist()  # both results read it
    reason = F.coalesce(
        *(F.when(F.col(f"`{name}`").isNotNull(), F.lit(text)) for name, text in found.items())
    )
    marked = rows.withColumn(REASON, reason)
    good = marked.filter(F.col(REASON).isNull()).drop(REASON, *found)
    return good, marked.filter(F.col(REASON).isNotNull())


def stage_rows(rows: DataFrame, sink: TableSink, attempt: TableAttempt) -> StagedRows:
    """Write rows to files that no reader sees yet; for a merge, collect the newest row per key."""
    if sink.is_merged:
        newest = _newest(rows, sink)
        merged = newest.filter(_has_keys(newest, sink.keys))
        is_keyless = merged.num_rows < newest.num_rows
        schema = _arrow_schema(rows)
        return StagedRows(merged=merged, files=[], schema=schema, has_null_keys=is_keyless)
    schema = evolve(attempt.schema, _arrow_schema(rows), attempt.promotions).schema
    folder = attempt.folder

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_files(batches, folder, schema)

    listed = rows.mapInArrow(write, LISTED_DDL).collect()
    files = [WrittenFile(path=row.path, bytes=row.bytes, rows=row.rows) for row in listed]
    return StagedRows(merged=None, files=files, schema=schema)


class StagedRows:
    """Rows that are written but not committed."""

    def __init__(
        self,
        *,
        merged: pa.Table | None,
        files: Sequence[WrittenFile],
        schema: pa.Schema,
        has_null_keys: bool = False,
    ) -> None:
        self._merged = merged
        self.has_null_keys = has_null_keys
        """Whether rows were left out because a key is null."""
        self._files = files
        self._schema = schema

    @property
    def rows(self) -> int:
        if self._merged is not None:
            return int(self._merged.num_rows)
        return sum(file.rows for file in self._files)

    def commit(self, sink: TableSink, attempt: TableAttempt, progress: TableProgress) -> None:
        if self._merged is None:
            attempt.commit(self._files, self._schema, progress)
            return
        assert isinstance(attempt, DeltaAttempt), "only Delta tables are merged"
        attempt.merge(
            self._merged,
            progress,
            keys=sink.keys,
            order=order_column(sink),
            delete=DELETED if sink.delete else None,
        )


def order_column(sink: TableSink) -> str | None:
    """The column whose larger value wins, also over the row in the table."""
    return None if sink.order == ARRIVAL else sink.order


def newest_row_orders(sink: TableSink, columns: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """How to find the newest row of each key in a batch, in steps (group columns, order columns).

    A key that moved to another partition has changes in both. Within a partition the offset
    decides, because timestamps may go back. Between partitions only the timestamp can decide.
    """
    keys, order = list(sink.keys), order_column(sink)
    arrival = [name for name in ("_timestamp", ARRIVAL) if name in columns]
    if order is not None:
        return [(keys, [order, *arrival])]
    if ARRIVAL not in columns:
        return []
    if "_partition" not in columns:
        return [(keys, [ARRIVAL])]
    origin = [name for name in ("_topic", "_partition") if name in columns]
    return [([*keys, *origin], [ARRIVAL]), (keys, arrival)]


def rows_with_null_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows that a merge cannot match, with the reason."""
    reason = F.coalesce(
        *(F.when(F.col(f"`{key}`").isNull(), F.lit(f"the key {key} is null")) for key in keys)
    )
    return rows.withColumn(REASON, reason).filter(F.col(REASON).isNotNull())


def _has_keys(table: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    found = table[keys[0]].is_valid()
    for key in keys[1:]:
        found = pc.and_(found, table[key].is_valid())
    return found


def _newest(rows: DataFrame, sink: TableSink) -> pa.Table:
    if sink.delete:
        rows = rows.withColumn(DELETED, F.coalesce(F.expr(sink.delete), F.lit(False)))
    for common, larger in newest_row_orders(sink, rows.columns):
        latest = Window.partitionBy(*(F.col(f"`{name}`") for name in common)).orderBy(
            *(F.col(f"`{name}`").desc() for name in larger)
        )
        rows = rows.withColumn("_rank", F.row_number().over(latest)).filter("_rank = 1")
        rows = rows.drop("_rank")
    table = rows.toArrow()
    return table.cast(plain_schema(table.schema))


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    return plain_schema(to_arrow_schema(rows.schema, timezone="UTC"))


def drop_stored_records(
    raw: DataFrame, batch: MicroBatch, below: Mapping[SourcePartition, int]
) -> DataFrame:
    """Leave out the records that the table has."""
    for partition, offset in below.items():
        topic = batch.names[partition.topic_id]
        is_stored = (
            (F.col("topic") == topic)
            & (F.col("partition") == partition.partition)
            & (F.col("offset") < offset)
        )
        raw = raw.filter(~is_stored)
    return raw
