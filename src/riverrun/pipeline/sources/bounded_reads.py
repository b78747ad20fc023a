"""Reads of records between offsets, beside the stream: the first ones to find a schema by, and
those of a batch once more, for in a query with state they come transformed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from riverrun.pipeline.declaration.model import STOP, TopicSource
from riverrun.pipeline.offsets import EARLIEST, Batch
from riverrun.pipeline.sinks.writing import FORMAT
from riverrun.pipeline.topics import first_records

SAMPLE_RECORDS_MAX = 1_000

Range = dict[str, dict[str, tuple[int, int]]]
"""By topic and partition."""


def sample(
    spark: SparkSession, source: TopicSource, bootstrap: str, options: Mapping[str, str]
) -> DataFrame | None:
    """The first records of each partition; None where there are none."""
    wanted: Range = {}
    found = first_records(bootstrap, source.topics, SAMPLE_RECORDS_MAX)
    for place, (start, end) in found.items():
        if start < end:
            wanted.setdefault(place.topic, {})[str(place.partition)] = (start, end)
    return _between(spark, source, wanted, options)


def again(
    spark: SparkSession, source: TopicSource, batch: Batch, options: Mapping[str, str]
) -> DataFrame | None:
    """The records of a batch; None where it has none."""
    return _between(spark, source, range_of(source, batch), options)


def range_of(source: TopicSource, batch: Batch) -> Range:
    wanted: Range = {}
    for place, end in batch.end.items():
        name = batch.names[place.topic_id]
        start = batch.start.get(place, EARLIEST)
        if name in source.topics and start != end:
            wanted.setdefault(name, {})[str(place.partition)] = (start, end)
    return wanted


def loss_option(source: TopicSource) -> dict[str, str]:
    """The stream and what is read beside it must agree on what a loss means."""
    return {"failOnDataLoss": str(source.on_data_loss == STOP).lower()}


def _between(
    spark: SparkSession, source: TopicSource, wanted: Range, options: Mapping[str, str]
) -> DataFrame | None:
    if not wanted:
        return None
    assigned = {name: [int(index) for index in rows] for name, rows in wanted.items()}
    starts, ends = (
        {name: {index: pair[side] for index, pair in rows.items()} for name, rows in wanted.items()}
        for side in (0, 1)
    )
    reader = spark.read.format(FORMAT).options(**options).options(**loss_option(source))
    return (
        reader.option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
