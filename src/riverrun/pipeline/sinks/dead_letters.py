"""Writes invalid records to the dead-letter topic, with the reason, before the sink commits.

If the sink is a topic, they are part of its delivery and become visible with its records. If it is
a table, they are a delivery of their own, decided before the table commits. A repeated batch finds
the decision and does not write them again.

Most batches have none. They are counted while the rows are written, and only a batch that has some
is read a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from riverrun.pipeline.offsets import TableProgress
from riverrun.pipeline.sinks.row_counts import COUNT, observed_count
from riverrun.pipeline.sinks.topics import RecordWriter, TopicDelivery
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


class DeadLetterDelivery:
    """Writes the dead letters of a table, once for each batch.

    Opened by the first batch that has some. The decision stores a digest of the batch in its
    checkpoint, and of the schemas that decide which records are invalid. If one of them has changed
    between two attempts, the dead letters are written again, so that none is lost.
    """

    def __init__(self, open_delivery: Callable[[], TopicDelivery]) -> None:
        self._open = open_delivery
        self._delivery: TopicDelivery | None = None
        self._batch: TableProgress | None = None

    def begin(self, batch: TableProgress) -> None:
        """Start a batch, which its digest identifies."""
        self._batch = batch

    def write(self, records: DataFrame, topic: str) -> int:
        """Returns 0 if an earlier attempt has written the dead letters of the batch."""
        assert self._batch is not None, "the batch has begun"
        if self._delivery is None:
            self._delivery = self._open()
        if self._delivery.stored_progress.digest == self._batch.digest:
            return 0
        return self._delivery.write(records, topic)

    def commit(self) -> None:
        """Raises DeliveryFenced and CannotContinue."""
        if self._delivery is not None and self._delivery.is_staged:
            assert self._batch is not None, "the batch has begun"
            self._delivery.commit(self._batch)

    def abort(self) -> None:
        if self._delivery is not None:
            self._delivery.abort()


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
