"""Batch reads between two offsets, beside the stream.

They read the first records of a topic to infer a schema, and re-read the records of a batch whose
query has state, because such a batch holds only transformed rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from pyspark_riverrun.source import FORMAT
from riverrun.pipeline.declaration.model import STOP, TopicSource
from riverrun.pipeline.offsets import EARLIEST, MicroBatch
from riverrun.pipeline.topics import first_record_ranges

SAMPLE_RECORDS_MAX = 1_000
"""Per partition."""

OffsetRanges = dict[str, dict[str, tuple[int, int]]]
"""[start, end) by topic and partition."""


def sample_records(
    spark: SparkSession, source: TopicSource, options: Mapping[str, str]
) -> DataFrame | None:
    """The first records of each partition; None if there are none."""
    wanted: OffsetRanges = {}
    bootstrap = options["kafka.bootstrap.servers"]
    found = first_record_ranges(bootstrap, source.topics, SAMPLE_RECORDS_MAX)
    for partition, (start, end) in found.items():
        if start < end:
            wanted.setdefault(partition.topic, {})[str(partition.partition)] = (start, end)
    return _read(spark, source, wanted, options)


def reread_batch(
    spark: SparkSession, source: TopicSource, batch: MicroBatch, options: Mapping[str, str]
) -> DataFrame | None:
    """The records of a batch; None if it has none."""
    return _read(spark, source, batch_ranges(source, batch), options)


def batch_ranges(source: TopicSource, batch: MicroBatch) -> OffsetRanges:
    wanted: OffsetRanges = {}
    for partition, end in batch.end.items():
        name = batch.names[partition.topic_id]
        start = batch.start.get(partition, EARLIEST)
        if name in source.topics and start != end:
            wanted.setdefault(name, {})[str(partition.partition)] = (start, end)
    return wanted


def data_loss_option(source: TopicSource) -> dict[str, str]:
    """The stream and the reads beside it must treat lost records alike."""
    return {"failOnDataLoss": str(source.on_data_loss == STOP).lower()}


def _read(
    spark: SparkSession, source: TopicSource, wanted: OffsetRanges, options: Mapping[str, str]
) -> DataFrame | None:
    if not wanted:
        return None
    assigned = {name: [int(index) for index in ranges] for name, ranges in wanted.items()}
    starts, ends = (
        {
            name: {index: pair[side] for index, pair in ranges.items()}
            for name, ranges in wanted.items()
        }
        for side in (0, 1)
    )
    reader = spark.read.format(FORMAT).options(**options).options(**data_loss_option(source))
    return (
        reader.option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .load()
    )
