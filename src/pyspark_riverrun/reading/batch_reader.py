"""Batch reads, planned once against the current offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_riverrun.cluster.link import link_to
from pyspark_riverrun.cluster.planner import DataLost, Planner
from pyspark_riverrun.offsets import Offsets
from pyspark_riverrun.options import ReadOptions
from pyspark_riverrun.reading.ranges import plan_ranges
from pyspark_riverrun.reading.read_task import partitions_of, read_range


class BatchReader(DataSourceReader):
    """Reads the requested columns, in their order."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        link = link_to(options.cluster)
        link.reach()
        planner = Planner(link, options)
        found = planner.find()
        # Resolve the start last. If retention advanced the log start offset in between,
        # ``_checked`` would report the older start as data loss. It also limits the start to the
        # end.
        end = planner.ending(found)
        start = planner.starting(found)
        start = self._checked(planner, start, end)
        planned = plan_ranges(
            start, end, min_partitions=options.min_partitions, max_records=options.max_records
        )
        return partitions_of(planned, found.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def _checked(self, planner: Planner, start: Offsets, end: Offsets) -> Offsets:
        """Fail before reading if offsets below the log start offset are requested."""
        earliest = planner.earliest(start)
        lost = [at for at in start if start[at] < earliest[at] and start[at] < end[at]]
        if lost and self._options.fail_on_data_loss:
            at = lost[0]
            raise DataLost(
                f"offsets {start[at]} to {earliest[at] - 1} of {at} were deleted: the log starts "
                f"at {earliest[at]}. To read the remaining records, set failOnDataLoss=false"
            )
        return {at: min(max(start[at], earliest[at]), end[at]) for at in start}
