"""Records that do not fit, into a topic of their own with the reason, before the table commits.

Most batches have none. So they are counted while the rows are written, and only a batch that has
some is read a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from riverrun.pipeline.sinks.row_counts import COUNT, told
from riverrun.pipeline.sources.parsing import REASON

FORMAT: Final = "riverrun"
PLACE: Final = ("topic", "partition", "offset")


class DeadLetters:
    """Those of one source in one batch."""

    def __init__(
        self, parsed: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]
    ) -> None:
        self._parsed = parsed
        self._topic = topic
        self._pipeline = pipeline
        self._options = options
        self._seen: Observation | None = None

    def watched(self, *, is_surely_run: bool) -> DataFrame:
        """The rows, which are counted by whoever writes them."""
        if not is_surely_run:
            return self._parsed
        self._seen = Observation()
        is_bad = F.col(REASON).isNotNull()
        return self._parsed.observe(self._seen, F.count_if(is_bad).alias(COUNT))

    def bury(self) -> int:
        """Write them; gives how many there are."""
        bad = self._parsed.filter(F.col(REASON).isNotNull())
        count = self._told()
        if count is None:
            count = bad.count()
        if count:
            _write(bad, self._topic, self._pipeline, self._options)
        return count

    def _told(self) -> int | None:
        return None if self._seen is None else told(self._seen)


def bury_misfits(rows: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]) -> int:
    """Rows of a transform as JSON; where they came from is told as far as they still know it."""
    fields = [name for name in rows.columns if name != REASON]
    value = F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields)))
    places = {name: f"_{name}" for name in PLACE if f"_{name}" in fields}
    key = F.col("_key") if "_key" in fields else F.lit(None).cast("string")
    told = [
        _header("reason", F.col(REASON)),
        *_places(places),
        _header("pipeline", F.lit(pipeline)),
    ]
    records = rows.select(key.alias("key"), value.alias("value"), F.array(*told).alias("headers"))
    count = records.count()
    _send(records, topic, options)
    return count


def _write(rows: DataFrame, topic: str, pipeline: str, options: Mapping[str, str]) -> None:
    """The records as they came, with headers that say where they stood and what is wrong."""
    headers = F.array(
        _header("reason", F.col(REASON)),
        *_places({name: f"_{name}" for name in PLACE}),
        _header("pipeline", F.lit(pipeline)),
    )
    records = rows.select(
        F.col("_raw_key").alias("key"), F.col("_raw_value").alias("value"), headers.alias("headers")
    )
    _send(records, topic, options)


def _places(columns: Mapping[str, str]) -> list[Column]:
    return [_header(name, F.col(column)) for name, column in columns.items()]


def _header(name: str, value: Column) -> Column:
    text = value.cast("string").cast("binary")
    return F.struct(F.lit(f"riverrun.{name}").alias("key"), text.alias("value"))


def _send(records: DataFrame, topic: str, options: Mapping[str, str]) -> None:
    records.write.format(FORMAT).options(**options).option("topic", topic).mode("append").save()
