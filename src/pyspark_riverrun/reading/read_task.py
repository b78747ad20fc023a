"""The work of one read task: a range of offsets in, Arrow tables out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_riverrun.arrow.decode import to_arrow
from pyspark_riverrun.cluster.link import freeze_heap, link_to
from pyspark_riverrun.options import ReadOptions
from pyspark_riverrun.reading.prefetch import FetchOptions, RangePrefetch
from pyspark_riverrun.reading.ranges import Range

ROWS_MAX: Final = 10_000
BATCH_BYTES_MAX: Final = 2 * 1024 * 1024
"""Per Arrow batch. Large enough to amortise its cost, small enough for the CPU cache and for memory
that Java already holds."""


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The range that planning sends to a task."""

    range_: Range
    topic_id: UUID | None


def partitions_of(
    ranges: Sequence[Range], topic_ids: Mapping[str, UUID | None]
) -> list[InputPartition]:
    return [RangePartition(one, topic_ids.get(one.topic)) for one in ranges]


def read_range(
    options: ReadOptions, columns: Sequence[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Raises DataLost, KafkaError, OSError and CorruptBatch."""
    if not isinstance(partition, RangePartition):
        return  # Spark passes an empty partition if planning returned none
    range_ = partition.range_
    prefetch = RangePrefetch(
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
    for response in prefetch.responses():
        for table in to_arrow(
            response,
            topic=range_.topic,
            partition=range_.partition,
            start=range_.start,
            end=range_.end,
            columns=columns,
        ):
            rows = min(max(table.num_rows * BATCH_BYTES_MAX // max(table.nbytes, 1), 1), ROWS_MAX)
            for start in range(0, table.num_rows, rows):
                yield table.slice(start, rows)
    freeze_heap()
