"""What is done with the rows of a batch: executors write, the driver commits or sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from riverrun.pipeline.declaration.model import TableSink, TopicSink
from riverrun.pipeline.offsets import Batch, Place, Progress
from riverrun.pipeline.sinks.row_counts import counted, told
from riverrun.pipeline.sinks.tables.attempt import Attempt, open_table
from riverrun.pipeline.sinks.tables.data_files import LISTED_DDL, WrittenFile, write_files
from riverrun.pipeline.sinks.tables.schema_evolution import conflicts, evolve, plain_schema
from riverrun.pipeline.sources.parsing import REASON

FORMAT = "riverrun"
RECORD_COLUMNS = ("key", "value", "headers", "topic", "partition")
DELETED = "_is_deleted"
ARRIVAL = "_offset"
"""The default order of a merge. Offsets compare within one partition only, and its changes reach
the table once and in turn: so they are never compared with what the table has.
"""


@contextmanager
def closing_sink(sink: TableSink) -> Iterator[Attempt]:
    """A look at the sink's table; what was written and not committed goes with it."""
    options = {} if sink.catalog is None else {"catalog": sink.catalog}
    attempt = open_table(sink.format, sink.path, name=sink.table, options=options)
    try:
        yield attempt
    finally:
        attempt.discard()


def divided(rows: DataFrame, attempt: Attempt) -> tuple[DataFrame, DataFrame | None]:
    """Rows that fit the table's columns, and those that do not, with the reason. Mostly all fit,
    for values were read by a schema; but a schema may be declared anew, or found anew.
    """
    found = conflicts(attempt.schema, _arrow_schema(rows), attempt.promotions)
    if not found:
        return rows, None
    rows = rows.persist()  # both parts are read
    reason = F.coalesce(
        *(F.when(F.col(f"`{name}`").isNotNull(), F.lit(text)) for name, text in found.items())
    )
    marked = rows.withColumn(REASON, reason)
    good = marked.filter(F.col(REASON).isNull()).drop(REASON, *found)
    return good, marked.filter(F.col(REASON).isNotNull())


def write_table(rows: DataFrame, sink: TableSink, attempt: Attempt) -> Written:
    """All rows into files that no reader sees yet; for a merge, the newest row of each key."""
    if sink.is_merged:
        newest = _newest(rows, sink)
        merged = newest.filter(_has_keys(newest, sink.keys))
        is_keyless = merged.num_rows < newest.num_rows
        schema = _arrow_schema(rows)
        return Written(merged=merged, files=[], schema=schema, has_keyless=is_keyless)
    schema = evolve(attempt.schema, _arrow_schema(rows), attempt.promotions).schema
    folder = attempt.folder

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_files(batches, folder, schema)

    listed = rows.mapInArrow(write, LISTED_DDL).collect()
    files = [WrittenFile(path=row.path, bytes=row.bytes, rows=row.rows) for row in listed]
    return Written(merged=None, files=files, schema=schema)


class Written:
    """Rows that only wait for their commit."""

    def __init__(
        self,
        *,
        merged: pa.Table | None,
        files: Sequence[WrittenFile],
        schema: pa.Schema,
        has_keyless: bool = False,
    ) -> None:
        self._merged = merged
        self.has_keyless = has_keyless
        """Whether rows were left out since a key of theirs is null."""
        self._files = files
        self._schema = schema

    @property
    def rows(self) -> int:
        if self._merged is not None:
            return int(self._merged.num_rows)
        return sum(file.rows for file in self._files)

    def commit(self, sink: TableSink, attempt: Attempt, progress: Progress) -> None:
        if self._merged is None:
            attempt.commit(self._files, self._schema, progress)
            return
        from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

        assert isinstance(attempt, DeltaAttempt), "only Delta tables are merged"
        attempt.merge(
            self._merged,
            progress,
            keys=sink.keys,
            order=order_of(sink),
            delete=DELETED if sink.delete else None,
        )


def order_of(sink: TableSink) -> str | None:
    """The column whose larger value wins, also over the table's row."""
    return None if sink.order == ARRIVAL else sink.order


def rankings(sink: TableSink, columns: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """How the newest row of each key is found in a batch: step by step the columns that rows have
    in common, and those whose larger values win.

    A key that moved to another partition has changes in both: within one the offset tells which is
    newer, though times may go back; between two only the time can.
    """
    keys, order = list(sink.keys), order_of(sink)
    arrival = [name for name in ("_timestamp", ARRIVAL) if name in columns]
    if order is not None:
        return [(keys, [order, *arrival])]
    if ARRIVAL not in columns:
        return []
    if "_partition" not in columns:
        return [(keys, [ARRIVAL])]
    place = [name for name in ("_topic", "_partition") if name in columns]
    return [([*keys, *place], [ARRIVAL]), (keys, arrival)]


def keyless(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows that no merge can find again, with the reason."""
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
    for common, larger in rankings(sink, rows.columns):
        latest = Window.partitionBy(*(F.col(f"`{name}`") for name in common)).orderBy(
            *(F.col(f"`{name}`").desc() for name in larger)
        )
        rows = rows.withColumn("_place", F.row_number().over(latest)).filter("_place = 1")
        rows = rows.drop("_place")
    table = rows.toArrow()
    return table.cast(plain_schema(table.schema))


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    return plain_schema(to_arrow_schema(rows.schema, timezone="UTC"))


def write_topic(rows: DataFrame, sink: TopicSink, options: Mapping[str, str]) -> int:
    """At least once: a batch that is run again is written again. Gives the number of records."""
    is_record = "value" in rows.columns and all(name in RECORD_COLUMNS for name in rows.columns)
    if not is_record:
        key = F.lit(None).cast("string") if sink.key is None else F.col(sink.key).cast("string")
        value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in rows.columns)))
        rows = rows.select(key.alias("key"), value.alias("value"))
    rows, seen = counted(rows)
    rows.write.format(FORMAT).options(**options).option("topic", sink.topic).mode("append").save()
    return told(seen) or 0


def cut(raw: DataFrame, batch: Batch, below: Mapping[Place, int]) -> DataFrame:
    """Without the records that the table has."""
    for place, offset in below.items():
        topic = batch.names[place.topic_id]
        is_had = (
            (F.col("topic") == topic)
            & (F.col("partition") == place.partition)
            & (F.col("offset") < offset)
        )
        raw = raw.filter(~is_had)
    return raw
