"""How offsets become batches and tasks, and how a stream plans each trigger."""

from collections.abc import Iterable, Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from pyspark_riverrun.arrow.decode import COLUMNS
from pyspark_riverrun.cluster.planner import DataLost, SubscribedPartitions
from pyspark_riverrun.listener import lag_between
from pyspark_riverrun.offsets import Offsets, topic_partition
from pyspark_riverrun.options import read_options
from pyspark_riverrun.reading.ranges import Range, limit_offsets, plan_ranges
from pyspark_riverrun.reading.read_task import RangePartition
from pyspark_riverrun.reading.stream_reader import COMMIT_PAUSE_S, StreamReader
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition

A0, A1 = topic_partition("a", 0), topic_partition("a", 1)
FIRST_ID, SECOND_ID = UUID(int=1000), UUID(int=2000)


def spans_of(planned: list[Range]) -> list[tuple[int, int, int]]:
    return [(one.partition, one.start, one.end) for one in planned]


def test_one_task_per_partition_with_records() -> None:
    planned = plan_ranges({A0: 5, A1: 7}, {A0: 9, A1: 7})
    assert spans_of(planned) == [(0, 5, 9)]


def test_large_partitions_are_split_for_min_partitions() -> None:
    planned = plan_ranges({A0: 0, A1: 0}, {A0: 900, A1: 10}, min_partitions=4)
    assert spans_of(planned) == [(0, 0, 300), (0, 300, 600), (0, 600, 900), (1, 0, 10)]


def test_max_records_limits_each_task() -> None:
    planned = plan_ranges({A0: 0}, {A0: 10}, max_records=4)
    assert spans_of(planned) == [(0, 0, 3), (0, 3, 6), (0, 6, 10)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), min_size=1, max_size=5),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 50),
)
def test_every_offset_is_in_exactly_one_range(
    sizes: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    start = {topic_partition("a", n): begin for n, (begin, _) in enumerate(sizes)}
    end = {topic_partition("a", n): begin + size for n, (begin, size) in enumerate(sizes)}
    planned = plan_ranges(start, end, min_partitions=min_partitions, max_records=max_records)
    found = sorted((one.partition, n) for one in planned for n in range(one.start, one.end))
    assert found == sorted((at.partition, n) for at in start for n in range(start[at], end[at]))
    if max_records is not None:
        assert all(one.size <= max_records for one in planned)


def test_limit_is_shared_by_size_with_at_least_one_each() -> None:
    end = limit_offsets({A0: 0, A1: 0}, {A0: 1_000_000, A1: 1}, 100)
    assert end == {A0: 99, A1: 1}
    assert limit_offsets({A0: 0}, {A0: 50}, 100) == {A0: 50}


class FakePlanner:
    """A cluster whose offsets the test changes."""

    def __init__(self, latest: Offsets) -> None:
        self.ends = dict(latest)
        self.begins: Offsets = {}
        self.topic_id = FIRST_ID
        self.commits: list[tuple[str, Offsets]] = []
        self.refusal: Exception | None = None
        self.refused = 0
        self.asked = 0
        self.known: SubscribedPartitions | None = None
        self.read: Offsets | None = None

    def find(self, known: SubscribedPartitions | None = None) -> SubscribedPartitions:
        self.known = known
        return SubscribedPartitions(
            partitions=tuple(sorted(self.ends)), topic_ids={"a": self.topic_id}
        )

    def starting(self, found: SubscribedPartitions) -> Offsets:
        return {at: self.ends[at] for at in found.partitions}

    def latest(self, partitions: Iterable[TopicPartition], read: Offsets | None = None) -> Offsets:
        self.asked += 1
        self.read = read
        return {at: self.ends[at] for at in partitions}

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return {at: self.begins.get(at, 0) for at in partitions}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if self.refusal is not None:
            self.refused += 1
            raise self.refusal
        self.commits.append((group, dict(offsets)))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def stream(planner: FakePlanner, clock: Clock | None = None, **options: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}
    given |= {name.replace("_", "."): value for name, value in options.items()}
    parsed = read_options(given, is_streaming=True)
    return StreamReader(parsed, COLUMNS, planner=planner, now=clock or Clock())  # type: ignore[arg-type]


ALL = ReadAllAvailable()


def test_first_initial_offset_is_cached_and_made_durable() -> None:
    """Spark calls initialOffset twice and uses the second result."""
    planner = FakePlanner({A0: 100})
    reader = stream(planner)
    first = reader.initialOffset()
    planner.ends[A0] = 107
    assert reader.initialOffset() == first == {"a": {"0": 100}}
    # The first batch is empty, so that a query that dies in it starts here again.
    assert reader.latestOffset(first, ALL) == first
    assert reader.latestOffset(first, ALL) == {"a": {"0": 107}}


def test_fixed_start_needs_no_empty_batch() -> None:
    planner = FakePlanner({A0: 100})
    reader = stream(planner, startingOffsets='{"a": {"0": 100}}')
    start = reader.initialOffset()
    planner.ends[A0] = 107
    assert reader.latestOffset(start, ALL) == {"a": {"0": 107}}


def test_group_offsets_are_committed_once_per_trigger() -> None:
    planner = FakePlanner({A0: 10})
    reader = stream(planner, kafka_group_id="g")
    reader.latestOffset({"a": {"0": 5}}, ALL)
    reader.latestOffset({"a": {"0": 5}}, ALL)
    reader.latestOffset({"a": {"0": 10}}, ALL)
    assert planner.commits == [("g", {A0: 5}), ("g", {A0: 10})]


def test_refused_group_commit_does_not_stop_the_query() -> None:
    planner = FakePlanner({A0: 10})
    planner.refusal = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has members")
    reader = stream(planner, kafka_group_id="g")
    with pytest.warns(UserWarning, match="the group has members"):
        assert reader.latestOffset({"a": {"0": 5}}, ALL) == {"a": {"0": 10}}


def test_unresponsive_coordinator_is_retried_after_a_pause() -> None:
    planner, clock = FakePlanner({A0: 10}), Clock()
    planner.refusal = TimeoutError("no response")
    reader = stream(planner, clock, kafka_group_id="g")
    with pytest.warns(UserWarning, match="no response"):
        assert reader.latestOffset({"a": {"0": 5}}, ALL) == {"a": {"0": 10}}
    reader.latestOffset({"a": {"0": 10}}, ALL)
    assert planner.refused == 1
    clock.now, planner.refusal = COMMIT_PAUSE_S, None
    reader.latestOffset({"a": {"0": 10}}, ALL)
    assert planner.commits == [("g", {A0: 10})]


def test_available_now_reads_up_to_the_end_at_its_start() -> None:
    planner = FakePlanner({A0: 10})
    reader = stream(planner, maxOffsetsPerTrigger="6")
    reader.prepareForTriggerAvailableNow()
    planner.ends[A0] = 500
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(6)
    assert reader.latestOffset({"a": {"0": 0}}, limit) == {"a": {"0": 6}}
    assert reader.latestOffset({"a": {"0": 6}}, limit) == {"a": {"0": 10}}
    assert reader.latestOffset({"a": {"0": 10}}, limit) == {"a": {"0": 10}}


def test_report_latest_offset_sends_no_request() -> None:
    planner = FakePlanner({A0: 10})
    reader = stream(planner)
    assert reader.reportLatestOffset() is None
    reader.latestOffset({"a": {"0": 0}}, ReadMaxRows(3))
    asked = planner.asked
    assert reader.reportLatestOffset() == {"a": {"0": 10}}
    assert planner.asked == asked


def test_min_offsets_delays_a_batch_up_to_the_maximum() -> None:
    planner = FakePlanner({A0: 10})
    clock = Clock()
    reader = stream(planner, clock, minOffsetsPerTrigger="5", maxTriggerDelay="30s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    assert reader.latestOffset({"a": {"0": 0}}, limit) == {"a": {"0": 10}}
    planner.ends[A0] = 14
    assert reader.latestOffset({"a": {"0": 10}}, limit) == {"a": {"0": 10}}
    planner.ends[A0] = 15
    assert reader.latestOffset({"a": {"0": 10}}, limit) == {"a": {"0": 15}}
    planner.ends[A0] = 16
    clock.now = 31.0
    assert reader.latestOffset({"a": {"0": 15}}, limit) == {"a": {"0": 16}}


def test_new_partitions_are_read_from_their_first_record() -> None:
    planner = FakePlanner({A0: 10, A1: 4})
    reader = stream(planner)
    end = reader.latestOffset({"a": {"0": 10}}, ALL)
    assert end == {"a": {"0": 10, "1": 4}}
    (task,) = reader.partitions({"a": {"0": 10}}, end)
    assert isinstance(task, RangePartition)
    assert (task.range_.partition, task.range_.start, task.range_.end) == (1, 0, 4)
    assert task.topic_id == FIRST_ID


def test_new_partition_without_its_first_records_is_reported() -> None:
    planner = FakePlanner({A0: 10, A1: 9})
    planner.begins[A1] = 3
    with pytest.raises(DataLost, match="a-1 starts at offset 3, not at 0"):
        stream(planner).latestOffset({"a": {"0": 10}}, ALL)


def test_log_shorter_than_before_is_reported() -> None:
    planner = FakePlanner({A0: 3})
    with pytest.raises(DataLost, match="ends at 3, but was already read up to 10"):
        stream(planner).latestOffset({"a": {"0": 10}}, ALL)
    lenient = stream(planner, failOnDataLoss="false")
    with pytest.warns(UserWarning, match="ends at 3"):
        assert lenient.latestOffset({"a": {"0": 10}}, ALL) == {"a": {"0": 3}}


def test_recreated_topic_is_reported() -> None:
    planner = FakePlanner({A0: 10})
    reader = stream(planner)
    reader.latestOffset({"a": {"0": 10}}, ALL)
    planner.topic_id = SECOND_ID
    with pytest.raises(DataLost, match="deleted and recreated"):
        reader.latestOffset({"a": {"0": 10}}, ALL)


def test_deleted_partition_is_reported() -> None:
    planner = FakePlanner({A0: 10})
    with pytest.raises(DataLost, match="a-1"):
        stream(planner).latestOffset({"a": {"0": 10, "1": 5}}, ALL)


def test_known_partitions_are_passed_to_the_lookup() -> None:
    planner = FakePlanner({A0: 10, A1: 7})
    reader = stream(planner)
    reader.latestOffset({"a": {"0": 3, "1": 5}}, ALL)
    reader.latestOffset({"a": {"0": 10, "1": 7}}, ALL)
    assert planner.known == SubscribedPartitions(partitions=(A0, A1), topic_ids={"a": FIRST_ID})
    assert planner.read == {A0: 10, A1: 7}


def test_first_batch_is_replanned_after_a_partition_was_added() -> None:
    """The query was killed after its end was logged. Spark requests its start again."""
    planner = FakePlanner({A0: 10, A1: 0})
    reader = stream(planner, startingOffsets="earliest")
    planner.begins = {A0: 0, A1: 0}
    (task,) = reader.partitions({"a": {"0": 0, "1": 0}}, {"a": {"0": 10}})
    assert isinstance(task, RangePartition)
    assert (task.range_.partition, task.range_.start, task.range_.end) == (0, 0, 10)


def test_partition_deleted_between_two_offsets_is_reported() -> None:
    with pytest.raises(DataLost, match="a-1 no longer exist"):
        stream(FakePlanner({A0: 10})).partitions({"a": {"0": 0, "1": 0}}, {"a": {"0": 10}})


def test_available_now_reports_a_log_shorter_than_before() -> None:
    planner = FakePlanner({A0: 300})
    reader = stream(planner)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(DataLost, match="ends at 300, but was already read up to 500"):
        reader.latestOffset({"a": {"0": 500}}, ALL)


def test_available_now_may_determine_its_start_after_its_end() -> None:
    planner = FakePlanner({A0: 300})
    reader = stream(planner, startingOffsets='{"a": {"0": -2, "1": -2}}')
    reader.prepareForTriggerAvailableNow()
    planner.ends = {A0: 310, A1: 20}
    start = reader.initialOffset()
    assert start == {"a": {"0": 310, "1": 20}}
    assert reader.latestOffset(start, ALL) == start


def test_available_now_checks_again_where_the_end_was_too_small() -> None:
    planner = FakePlanner({A0: 300})
    reader = stream(planner)
    reader.prepareForTriggerAvailableNow()
    planner.ends = {A0: 510, A1: 20}
    start = {"a": {"0": 500, "1": 20}}
    assert reader.latestOffset(start, ALL) == {"a": {"0": 510, "1": 20}}


def test_batch_of_an_earlier_run_is_planned_identically() -> None:
    planner = FakePlanner({A0: 500})
    (task,) = stream(planner).partitions({"a": {"0": 3}}, {"a": {"0": 9}})
    assert isinstance(task, RangePartition)
    assert (task.range_.start, task.range_.end, task.topic_id) == (3, 9, FIRST_ID)


def test_lag_is_the_unread_offsets() -> None:
    assert lag_between('{"a": {"0": 3}}', '{"a": {"0": 10, "1": 4}}') == {A0: 7, A1: 4}
    assert lag_between("17", "18") == {}
    assert lag_between(None, None) == {}
