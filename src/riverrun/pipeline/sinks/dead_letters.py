"""Writes invalid records to the dead-letter topic, with the reason, before the sink commits.

If the sink is a topic, they are part of its delivery and become visible with its records. Before a
commit of a table they are written at least once: none is lost, but a repeated batch repeats them.

Most batches have none. They are counted while the rows are written, and only a batch that has some
is read a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from riverrun.pipeline.sinks.row_counts import COUNT, observed_count
from riverrun.pipeline.sinks.topics import RecordWriter
from riverrun.pipeline.sources.json_misfits import JsonValues, with_explained_reason
from riverrun.pipeline.sources.parsing import REASON

ORIGIN_FIELDS: Final = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTopic:
    """Where dead letters go, and the headers that all of them have."""

    topic: str
    pipeline: str
    sink: str
    writer: RecordWriter

    def send(self, rows: DataFrame, key: Column, value: Column, origin: Mapping[str, str]) -> None:
        """Write the rows, with headers for the reason and the origin."""
        headers = [
            _header("reason", F.col(REASON)),
            *(_header(name, F.col(column)) for name, column in origin.items()),
            _header("pipeline", F.lit(self.pipeline)),
            _header("sink", F.lit(self.sink)),
        ]
        records = rows.select(
            key.alias("key"), value.alias("value"), F.array(*headers).alias("headers")
        )
        self.writer.write(records, self.topic)


class DeadLetters:
    """The dead letters of one source in one batch."""

    def __init__(self, parsed: DataFrame, to: DeadLetterTopic, values: JsonValues | None) -> None:
        """``values`` is None if the values are not JSON."""
        self._parsed = parsed
        self._to = to
        self._values = values
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
            if self._values is not None:
                bad = with_explained_reason(bad, self._values)
            origin = {name: f"_{name}" for name in ORIGIN_FIELDS}
            self._to.send(bad, F.col("_raw_key"), F.col("_raw_value"), origin)
        return count


def write_misfits(rows: DataFrame, to: DeadLetterTopic) -> int:
    """Write rows of a transform as JSON. Headers name their origin as far as columns keep it."""
    fields = [name for name in rows.columns if name != REASON]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)))
    origin = {name: f"_{name}" for name in ORIGIN_FIELDS if f"_{name}" in fields}
    key = F.col("_key") if "_key" in fields else F.lit(None).cast("string")
    count = rows.count()
    to.send(rows, key, value, origin)
    return count


def _header(name: str, value: Column) -> Column:
    text = value.cast("string").cast("binary")
    return F.struct(F.lit(f"riverrun.{name}").alias("key"), text.alias("value"))
