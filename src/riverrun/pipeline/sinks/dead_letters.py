"""Writes invalid records to the dead-letter topic, with the reason, before the table commits.

Most batches have none. They are counted while the rows are written, and only a batch that has some
is read a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from pyspark_riverrun.source import FORMAT
from riverrun.pipeline.sinks.row_counts import COUNT, observed_count
from riverrun.pipeline.sources.parsing import REASON

ORIGIN_FIELDS: Final = ("topic", "partition", "offset")


class DeadLetters:
    """The dead letters of one source in one batch."""

    def __init__(
        self, parsed: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]
    ) -> None:
        self._parsed = parsed
        self._topic = topic
        self._pipeline = pipeline
        self._options = options
        self._observation: Observation | None = None

    def observed_rows(self) -> DataFrame:
        """The rows, with the dead letters counted when the rows are read."""
        self._observation = Observation()
        is_bad = F.col(REASON).isNotNull()
        return self._parsed.observe(self._observation, F.count_if(is_bad).alias(COUNT))

    def write(self) -> int:
        """Write the dead letters and return their number."""
        bad = self._parsed.filter(F.col(REASON).isNotNull())
        count = None if self._observation is None else observed_count(self._observation)
        if count is None:
            count = bad.count()
        if count:
            _write(bad, self._topic, self._pipeline, self._options)
        return count


def write_misfits(rows: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]) -> int:
    """Write rows of a transform as JSON. Headers name their origin as far as columns keep it."""
    fields = [name for name in rows.columns if name != REASON]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)))
    origin = {name: f"_{name}" for name in ORIGIN_FIELDS if f"_{name}" in fields}
    key = F.col("_key") if "_key" in fields else F.lit(None).cast("string")
    headers = [
        _header("reason", F.col(REASON)),
        *_origin_headers(origin),
        _header("pipeline", F.lit(pipeline)),
    ]
    records = rows.select(
        key.alias("key"), value.alias("value"), F.array(*headers).alias("headers")
    )
    count = records.count()
    _send(records, topic, options)
    return count


def _write(rows: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]) -> None:
    """Write the original records, with headers for their origin and the reason."""
    headers = F.array(
        _header("reason", F.col(REASON)),
        *_origin_headers({name: f"_{name}" for name in ORIGIN_FIELDS}),
        _header("pipeline", F.lit(pipeline)),
    )
    records = rows.select(
        F.col("_raw_key").alias("key"), F.col("_raw_value").alias("value"), headers.alias("headers")
    )
    _send(records, topic, options)


def _origin_headers(columns: Mapping[str, str]) -> list[Column]:
    return [_header(name, F.col(column)) for name, column in columns.items()]


def _header(name: str, value: Column) -> Column:
    text = value.cast("string").cast("binary")
    return F.struct(F.lit(f"riverrun.{name}").alias("key"), text.alias("value"))


def _send(records: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    records.write.format(FORMAT).options(**options).option("topic", topic).mode("append").save()
