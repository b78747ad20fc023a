"""Streaming reads: plans the offsets of each micro-batch, in one process per query.

Three properties of Spark's calls would silently lose records or progress:

- Spark calls ``initialOffset`` twice in the first trigger and uses the second result. The first
  result is therefore cached.
- A query that dies in its first batch calls ``initialOffset`` again after a restart. A start that
  depends on the time of the call is therefore made durable by an empty first batch.
- Spark calls ``commit`` when it plans the next batch, so never for the last one. Group offsets are
  therefore committed in ``latestOffset``: it is called on every trigger, and all records before its
  ``start`` are processed.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_riverrun.cluster.link import link_to
from pyspark_riverrun.cluster.planner import DataLost, Planner, SubscribedPartitions
from pyspark_riverrun.offsets import OffsetJson, Offsets, Position, Timestamps, from_json, to_json
from pyspark_riverrun.options import ReadOptions
from pyspark_riverrun.reading.ranges import count_between, limit_offsets, plan_ranges
from pyspark_riverrun.reading.read_task import partitions_of, read_range
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition

COMMIT_PAUSE_S: Final = 60.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per run of a query. Its state is lost with the process."""

    def __init__(
        self,
        options: ReadOptions,
        columns: Sequence[str],
        *,
        planner: Planner | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._own_planner = planner
        self._now = now
        self._initial: Offsets | None = None
        self._is_first = False
        """Whether the next batch must be empty, to store the start offsets in the checkpoint."""
        self._target: Offsets | None = None
        self._seen_latest: Offsets = {}
        self._topic_ids: dict[str, UUID | None] = {}
        self._new: Offsets = {}
        """Start offsets of partitions that appeared while the query ran."""
        self._committed: Offsets = {}
        self._commit_at = 0.0
        """When to commit to the group again, after its coordinator did not respond."""
        self._triggered_at: float | None = None

    # Called by Spark, in this order

    def initialOffset(self) -> OffsetJson:
        if self._initial is None:
            planner = self._planner()
            found = self._find(planner)
            self._initial = planner.starting(found)
            self._is_first = _depends_on_time(self._options)
        return to_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        planner = self._planner()
        self._target = planner.latest(self._find(planner).partitions)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None and self._target is None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        begin = from_json(start)
        self._commit_group(begin)
        planner = self._planner()
        latest = self._seen_latest = self._latest(planner, begin)
        if self._is_first:
            self._is_first = False
            # Any other start comes from the checkpoint, so it is durable already.
            if begin == self._initial:
                return start
        begin = self._with_new(planner, begin, latest)
        end = self._checked_end(begin, latest)
        if self._must_wait(begin, end, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            end = limit_offsets(begin, end, limit.max_rows)
        self._triggered_at = self._now()
        return to_json(end)

    def reportLatestOffset(self) -> OffsetJson | None:
        """Cached, because Spark calls it right after each ``latestOffset``."""
        return to_json(self._seen_latest) if self._seen_latest else None

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        planner = self._planner()
        if not self._topic_ids:
            # Spark repeats a batch of an earlier run before any other call.
            self._find(planner)
        # If the first batch is planned again, its start may have newer partitions than its end.
        left = [at for at in begin if at not in stop]
        if left:
            found = self._find(planner, left).partitions
            gone = [at for at in left if at not in found]
            if gone:
                names = ", ".join(map(str, gone))
                self._report(f"partitions {names} no longer exist: their topic was deleted")
        begin = self._with_new(planner, begin, stop)
        planned = plan_ranges(
            {at: min(begin[at], stop[at]) for at in stop},
            stop,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records,
        )
        return partitions_of(planned, self._topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._columns, partition)

    def commit(self, end: OffsetJson) -> None:
        """Too late for the last batch; see ``latestOffset``."""

    def stop(self) -> None:
        """Connections are closed with the process."""

    # Decisions

    def _planner(self) -> Planner:
        if self._own_planner is not None:
            return self._own_planner
        link = link_to(self._options.cluster)
        link.reach()
        return Planner(link, self._options)

    def _find(self, planner: Planner, known: Iterable[TopicPartition] = ()) -> SubscribedPartitions:
        """Find partitions, and report topics that were recreated."""
        found = planner.find(
            SubscribedPartitions(partitions=tuple(known), topic_ids=dict(self._topic_ids))
        )
        for topic, topic_id in found.topic_ids.items():
            known_id = self._topic_ids.get(topic)
            if known_id is not None and topic_id != known_id:
                self._report(
                    f"topic {topic} was deleted and recreated: its offsets mean other records now"
                )
            self._topic_ids[topic] = topic_id
        return found

    def _latest(self, planner: Planner, begin: Offsets) -> Offsets:
        """The log end offsets; with AvailableNow, those at the start of the query."""
        read = {at: offset for at, offset in begin.items() if not self._is_later_start(at, offset)}
        if self._target is None:
            return planner.latest(self._find(planner, read).partitions, read)
        short = {at: offset for at, offset in read.items() if self._target.get(at, -1) < offset}
        if short:
            found = self._find(planner, short).partitions
            self._target |= planner.latest([at for at in short if at in found], short)
        return self._target

    def _is_later_start(self, at: TopicPartition, offset: int) -> bool:
        """The start may be determined after AvailableNow has determined the end."""
        return self._target is not None and (self._initial or {}).get(at) == offset

    def _with_new(
        self, planner: Planner, begin: Mapping[TopicPartition, int], end: Offsets
    ) -> Offsets:
        """Add partitions that appeared later. They are read from their first record."""
        unknown = [at for at in end if at not in begin and at not in self._new]
        if unknown:
            earliest = planner.earliest(unknown)
            for at, offset in earliest.items():
                if offset > 0:
                    self._report(f"new partition {at} starts at offset {offset}, not at 0")
            self._new |= earliest
        return dict(begin) | {at: self._new[at] for at in end if at not in begin}

    def _checked_end(self, begin: Offsets, latest: Offsets) -> Offsets:
        """Report partitions that were deleted or are shorter than before. Offsets never
        decrease."""
        end = dict(latest)
        for at, offset in begin.items():
            if self._is_later_start(at, offset):
                end[at] = max(offset, latest.get(at, offset))
            elif at not in latest:
                self._report(f"partition {at} no longer exists: its topic was deleted")
            elif latest[at] < offset:
                self._report(
                    f"{at} ends at {latest[at]}, but was already read up to {offset}: records "
                    "were lost, or the topic was recreated"
                )
        return end

    def _must_wait(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        """Whether fewer than minOffsetsPerTrigger are available, and maxTriggerDelay has not
        expired.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._triggered_at is None or count_between(begin, end) >= least:
            return False
        return self._now() - self._triggered_at < self._options.max_delay_s

    def _commit_group(self, finished: Offsets) -> None:
        """Commit to the group to publish the lag. Queries resume from the checkpoint."""
        group = self._options.group_id
        if group is None or finished == self._committed or self._now() < self._commit_at:
            return
        try:
            self._planner().commit(group, finished)
        except (KafkaError, OSError) as error:
            warnings.warn(f"cannot commit progress to group {group}: {error}", stacklevel=2)
            if isinstance(error, OSError):  # do not delay every batch by a timeout
                self._commit_at = self._now() + COMMIT_PAUSE_S
            return
        self._committed = finished

    def _report(self, lost: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{lost}. To continue with the remaining records, set failOnDataLoss=false; "
                "to read them all again, use a new checkpoint"
            )
        warnings.warn(lost, stacklevel=2)


def _depends_on_time(options: ReadOptions) -> bool:
    """Whether the start offsets may differ if they are determined later."""
    match options.starting:
        case Position():
            return options.starting is Position.LATEST
        case Timestamps():
            return options.when_no_match == "latest"
        case exact:
            return any(offset == Position.LATEST for offset in exact.values())
