"""What one task does to read: a range of offsets in, Arrow out; for batches and streams alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_riverrun.arrow.decode import to_arrow
from pyspark_riverrun.cluster.link import link_to, settle
from pyspark_riverrun.options import ReadOptions
from pyspark_riverrun.reading.prefetch import Ahead, FetchOptions
from pyspark_riverrun.reading.ranges import Range

ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 2 * 1024 * 1024
"""In one Arrow batch: enough to forget its cost, little enough that Java takes memory for it which
it had before, and that the processor's cache holds."""


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """What travels from planning to a task."""

    range_: Range
    topic_id: UUID | None


def partitions_of(
    ranges: Sequence[Range], topic_ids: Mapping[str, UUID | None]
) -> list[InputPartition]:
    return [RangePartition(one, topic_ids.get(one.topic)) for one in ranges]


def read_range(
    options: ReadOptions, columns: Sequence[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Raises DataLost, KafkaError, OSError and CorruptBatch, each in words."""
    if not isinstance(partition, RangePartition):
        return  # Spark makes up an empty partition when there is none
    range_ = partition.range_
    ahead = Ahead(
        link_to(options.cluster),
        range_,
        FetchOptions(
            bytes_max=options.fetch_bytes,
            wait_ms=options.fetch_wait_ms,
            is_committed_only=options.is_committed_only,
            fail_on_data_loss=options.fail_on_data_loss,
            topic_id=partition.topic_id,
        ),
    )
    for portion in ahead.portions():
        for table in to_arrow(
            portion,
            topic=range_.topic,
            partition=range_.partition,
            start=range_.start,
            end=range_.end,
            columns=columns,
        ):
            rows = min(max(table.num_rows * BATCH_BYTES_MAX // max(table.nbytes, 1), 1), ROWS_MAX)
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)
    settle()
