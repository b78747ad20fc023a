"""Tables contain every record exactly once, whatever happens to checkpoints and drivers.

These tests run without Spark: a batch is a range of offsets, and its records are those offsets.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pytest
from deltalake import DeltaTable, Schema

from riverrun.model.errors import KafkaError
from riverrun.pipeline.errors import CannotContinue, CommitConflict
from riverrun.pipeline.offsets import (
    EARLIEST,
    ApplyBatch,
    MicroBatch,
    SkipBatch,
    SourcePartition,
    StoredProgress,
    TableProgress,
    by_partition,
    decide_by_batch,
    decide_by_offsets,
    decide_for_topic,
    parse_progress,
    read_offset_log,
)
from riverrun.pipeline.sinks.tables import parquet
from riverrun.pipeline.sinks.tables.attempt import TableAttempt, open_table
from riverrun.pipeline.sinks.tables.data_files import WrittenFile, location, write_files
from riverrun.pipeline.sinks.tables.delta import DeltaAttempt
from riverrun.pipeline.sinks.tables.schema_evolution import conflicts, evolve
from riverrun.pipeline.state.start_offsets import resolve_start_offsets
from riverrun.pipeline.topics import Topics

SINK = "shop/orders"
ZERO = SourcePartition("topic-a", 0)
ONE = SourcePartition("topic-a", 1)
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
FORMATS = ("delta", "iceberg", "parquet")

OpenTable = Callable[[], TableAttempt]


@pytest.fixture(params=FORMATS)
def open_(request: pytest.FixtureRequest, tmp_path: Path) -> OpenTable:
    """Opens the table, as a driver does for each batch."""
    return lambda: open_table(request.param, str(tmp_path / "table"), name="orders")


def batch(
    number: int,
    start: dict[SourcePartition, int] | None = None,
    end: dict[SourcePartition, int] | None = None,
) -> MicroBatch:
    return MicroBatch(id=number, start=start or {}, end=end or {})


def written(
    attempt: TableAttempt, rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA
) -> list[WrittenFile]:
    whole = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    wanted = evolve(attempt.schema, schema).schema
    listed = write_files(iter([whole]), attempt.folder, wanted)
    return [WrittenFile(**row) for table in listed for row in table.to_pylist()]


def records(batch: MicroBatch, below: Any) -> list[dict[str, int]]:
    return [
        {"partition": place.partition, "offset": offset}
        for place, end in batch.end.items()
        for offset in range(batch.start.get(place, 0), end)
        if offset >= below.get(place, 0)
    ]


def commit_batch(attempt: TableAttempt, batch: MicroBatch) -> bool:
    """Decide and commit like a driver. Returns False if the table has the batch."""
    stored = attempt.stored_progress(SINK, batch.end)
    decision = decide_by_offsets(SINK, batch, stored)
    if isinstance(decision, SkipBatch):
        return False
    files = written(attempt, records(batch, decision.below))
    progress = decision.progress.after(stored, sum(file.rows for file in files))
    attempt.commit(files, evolve(attempt.schema, SCHEMA).schema, progress)
    return True


def total_of(open_: OpenTable) -> int | None:
    return open_().stored_progress(SINK, [ZERO]).total


def rows_of(open_: OpenTable) -> list[dict[str, Any]]:
    attempt: Any = open_()
    kind = type(attempt).__name__
    if kind == "DeltaAttempt":
        table = attempt._table.to_pyarrow_table()
    elif kind == "IcebergAttempt":
        table = attempt._table.scan().to_arrow()
    else:
        found = pads.dataset(attempt._path, schema=attempt.schema, partitioning=None)
        table = found.to_table()
    return sorted(table.to_pylist(), key=json.dumps)


def offsets_of(open_: OpenTable, partition: int = 0) -> list[int]:
    return sorted(row["offset"] for row in rows_of(open_) if row["partition"] == partition)


def test_batches_are_appended_in_sequence(open_: OpenTable) -> None:
    assert commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert commit_batch(open_(), batch(1, {ZERO: 3}, {ZERO: 5, ONE: 2}))
    assert offsets_of(open_) == [0, 1, 2, 3, 4]
    assert offsets_of(open_, 1) == [0, 1]
    assert open_().stored_progress(SINK, [ZERO, ONE]).offsets == {ZERO: 5, ONE: 2}


def test_replayed_batch_is_skipped(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert not commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert offsets_of(open_) == [0, 1, 2]


def test_lost_checkpoint_continues_where_the_table_ends(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    stored = open_().stored_progress(SINK, [ZERO, ONE])
    topics = Topics(ids={"orders": "topic-a"}, partitions={"orders": [0, 1]})
    starts = resolve_start_offsets(
        topics, previous=None, committed={}, stored=stored, is_table=True
    )
    assert starts == {"orders": {0: 3, 1: EARLIEST}}
    assert commit_batch(open_(), batch(0, {ZERO: 3}, {ZERO: 4}))
    assert offsets_of(open_) == [0, 1, 2, 3]


def test_replay_from_the_start_duplicates_nothing(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    commit_batch(open_(), batch(1, {ZERO: 3}, {ZERO: 6}))
    assert commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 8}))
    assert offsets_of(open_) == list(range(8))


def test_only_one_of_two_concurrent_drivers_commits(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    first, second = open_(), open_()
    assert commit_batch(first, batch(1, {ZERO: 2}, {ZERO: 4}))
    with pytest.raises(CommitConflict):
        commit_batch(second, batch(1, {ZERO: 2}, {ZERO: 5}))
    assert commit_batch(open_(), batch(1, {ZERO: 2}, {ZERO: 5})), "the second driver retries"
    assert offsets_of(open_) == [0, 1, 2, 3, 4]


def test_only_one_of_two_drivers_creates_the_table(open_: OpenTable) -> None:
    first, second = open_(), open_()
    assert commit_batch(first, batch(0, {ZERO: 0}, {ZERO: 2}))
    with pytest.raises(CommitConflict):
        commit_batch(second, batch(0, {ZERO: 0}, {ZERO: 2}))
    assert offsets_of(open_) == [0, 1]


def test_total_of_rows_is_exact_after_replays_and_lost_checkpoints(open_: OpenTable) -> None:
    assert total_of(open_) == 0
    assert commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert not commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert total_of(open_) == 3
    assert commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 5, ONE: 2})), "a lost checkpoint"
    assert total_of(open_) == len(rows_of(open_)) == 7
    stale = open_()
    stale.stored_progress(SINK, [ZERO])
    assert commit_batch(open_(), batch(1, {ZERO: 5}, {ZERO: 6}))
    with pytest.raises(CommitConflict):
        stale.commit([], SCHEMA, TableProgress(sink=SINK, offsets={ZERO: 9}, rows=99))
    assert total_of(open_) == 8


def test_total_of_a_table_without_one_stays_unknown(open_: OpenTable) -> None:
    """An older version did not store it, and other writers may have added rows."""
    attempt = open_()
    attempt.stored_progress(SINK, [ZERO])
    attempt.commit([], SCHEMA, TableProgress(sink=SINK, offsets={ZERO: 3}))
    assert commit_batch(open_(), batch(1, {ZERO: 3}, {ZERO: 5}))
    assert total_of(open_) is None


def test_stale_driver_is_refused(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    stale = open_()
    for number in range(1, 4):
        commit_batch(open_(), batch(number, {ZERO: number * 2}, {ZERO: number * 2 + 2}))
    with pytest.raises(CommitConflict):
        commit_batch(stale, batch(1, {ZERO: 2}, {ZERO: 4}))
    assert offsets_of(open_) == list(range(8))


def test_stale_driver_without_rows_is_refused(open_: OpenTable) -> None:
    """Its offsets would replace those of the other driver."""
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    stale = open_()
    stale.stored_progress(SINK, [ZERO])
    commit_batch(open_(), batch(1, {ZERO: 2}, {ZERO: 8}))
    with pytest.raises(CommitConflict):
        stale.commit([], SCHEMA, TableProgress(sink=SINK, offsets={ZERO: 4}))
    assert open_().stored_progress(SINK, [ZERO]).offsets == {ZERO: 8}


def test_stale_driver_with_new_columns_is_refused(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    stale = open_()
    stale.stored_progress(SINK, [ZERO])
    commit_batch(open_(), batch(1, {ZERO: 2}, {ZERO: 4}))
    wider = SCHEMA.append(pa.field("note", pa.string()))
    row = {"partition": 0, "offset": 2, "note": "again"}
    files = written(stale, [row], wider)
    with pytest.raises(CommitConflict):
        stale.commit(files, wider, TableProgress(sink=SINK, offsets={ZERO: 4}))
    assert offsets_of(open_) == [0, 1, 2, 3]


def test_batch_without_rows_advances_the_offsets(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 0}))
    assert open_().stored_progress(SINK, [ZERO]).offsets == {ZERO: 0}
    assert rows_of(open_) == []


def test_new_columns_and_wider_types_evolve_the_table(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 1}))
    attempt = open_()
    stored = attempt.stored_progress(SINK, [ZERO])
    wider = pa.schema([("partition", pa.int64()), ("offset", pa.int64()), ("note", pa.string())])
    row = {"partition": 2**40, "offset": 1, "note": "new"}
    decision = decide_by_offsets(SINK, batch(1, {ZERO: 1}, {ZERO: 2}), stored)
    assert not isinstance(decision, SkipBatch)
    attempt.commit(written(attempt, [row], wider), wider, decision.progress)
    assert rows_of(open_) == sorted(
        [row, {"partition": 0, "offset": 0, "note": None}], key=json.dumps
    )
    assert open_().stored_progress(SINK, [ZERO]).offsets == {ZERO: 2}


def test_incompatible_column_types_are_refused(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 1}))
    with pytest.raises(CannotContinue, match="column offset is int64 in the table and string"):
        evolve(open_().schema, pa.schema([("offset", pa.string())]))


def test_partition_unknown_to_the_table_must_start_at_its_first_record(open_: OpenTable) -> None:
    """Otherwise records before the offset, such as those of a recreated topic, would be lost."""
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    again = SourcePartition("topic-b", 0)
    with pytest.raises(CannotContinue, match="continues at offset 2, but the table has no records"):
        commit_batch(open_(), batch(1, {ZERO: 2, again: 2}, {ZERO: 2, again: 4}))
    assert commit_batch(open_(), batch(1, {ZERO: 2}, {ZERO: 2, again: 4}))


def test_progress_is_stored_per_sink(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    assert open_().stored_progress("another", [ZERO]).is_blank
    other = open_()
    other.stored_progress("another", [ZERO])
    other.commit([], SCHEMA, TableProgress(sink="another", offsets={ZERO: 9}))
    assert open_().stored_progress(SINK, [ZERO]).offsets == {ZERO: 2}
    assert open_().stored_progress("another", [ZERO]).offsets == {ZERO: 9}


def test_files_of_failed_task_attempts_are_not_committed(open_: OpenTable) -> None:
    attempt = open_()
    attempt.stored_progress(SINK, [ZERO])
    row = {"partition": 0, "offset": 0}
    written(attempt, [row])
    attempt.commit(written(attempt, [row]), SCHEMA, TableProgress(sink=SINK, offsets={ZERO: 1}))
    assert rows_of(open_) == [row]


def logged(number: int, digest: int, before: int | None) -> MicroBatch:
    """A batch of a query with state, with the digests of its log and of the previous one."""
    return MicroBatch(id=number, start={}, end={ZERO: number}, digest=digest, digest_before=before)


def commit_stateful(open_: OpenTable, batch: MicroBatch, query: str = "query") -> bool:
    attempt = open_()
    decision = decide_by_batch(SINK, batch, attempt.stored_progress(SINK, [ZERO]), query)
    if isinstance(decision, SkipBatch):
        return False
    files = written(attempt, [{"partition": 0, "offset": batch.id}])
    attempt.commit(files, SCHEMA, decision.progress)
    return True


def test_stateful_query_commits_each_batch_of_its_checkpoint_once(open_: OpenTable) -> None:
    brought = [
        commit_stateful(open_, logged(0, 100, None)),
        commit_stateful(open_, logged(1, 101, 100)),
        commit_stateful(open_, logged(1, 101, 100)),
        commit_stateful(open_, logged(2, 102, 101)),
    ]
    assert brought == [True, True, False, True]
    assert offsets_of(open_) == [0, 1, 2]
    with pytest.raises(CannotContinue, match="another checkpoint"):
        commit_stateful(open_, logged(3, 103, 102), "another query")
    with pytest.raises(CannotContinue, match="older state"):
        commit_stateful(open_, logged(9, 109, 108))


def test_stateful_query_refuses_an_old_or_copied_checkpoint(open_: OpenTable) -> None:
    """Its batch ids continue, but its batches have other records."""
    commit_stateful(open_, logged(0, 100, None))
    commit_stateful(open_, logged(1, 101, 100))
    commit_stateful(open_, logged(2, 102, 101))
    for other in (logged(1, 201, 100), logged(2, 202, 201), logged(3, 203, 202)):
        with pytest.raises(CannotContinue, match="an older one or a copy"):
            commit_stateful(open_, other)
    assert commit_stateful(open_, logged(3, 103, 102))
    assert offsets_of(open_) == [0, 1, 2, 3]


def test_drivers_with_different_latest_offsets_lose_nothing(open_: OpenTable) -> None:
    """Both start at the latest offset, before the table exists."""
    assert commit_batch(open_(), batch(0, {ZERO: 1000}, {ZERO: 1000}))
    assert commit_batch(open_(), batch(1, {ZERO: 1000}, {ZERO: 1005}))
    with pytest.raises(CannotContinue, match="continues at offset 1010, but the table ends"):
        commit_batch(open_(), batch(0, {ZERO: 1010}, {ZERO: 1010}))
    with pytest.raises(CannotContinue, match="continues at offset 7, but the table has no"):
        commit_batch(open_(), batch(0, {ZERO: 1005, ONE: 7}, {ZERO: 1005, ONE: 7}))
    assert commit_batch(open_(), batch(2, {ZERO: 1005}, {ZERO: 1020}))
    assert offsets_of(open_) == list(range(1000, 1020))


def test_table_with_progress_is_not_blank_for_a_recreated_topic(open_: OpenTable) -> None:
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert not open_().stored_progress(SINK, [SourcePartition("topic-b", 0)]).is_blank


def test_query_that_continued_a_table_does_not_start_a_new_one() -> None:
    first = MicroBatch(id=0, start={ZERO: 1000}, end={ZERO: 1005}, is_continued=True)
    with pytest.raises(CannotContinue, match="has none of this pipeline"):
        decide_by_offsets(SINK, first, StoredProgress())


def test_topic_without_id_is_an_error() -> None:
    with pytest.raises(KafkaError, match="topic b"):
        by_partition({"a": {0: 5}, "b": {0: 7}}, {"a": "topic-a"})


def test_table_behind_its_checkpoint_is_refused() -> None:
    with pytest.raises(CannotContinue, match="topic-a-0: the checkpoint continues at offset 7"):
        decide_by_offsets(SINK, batch(4, {ZERO: 7}, {ZERO: 9}), StoredProgress(offsets={ZERO: 5}))


def test_deleted_table_is_refused() -> None:
    with pytest.raises(CannotContinue, match="has none of this pipeline"):
        decide_by_offsets(SINK, batch(4, {ZERO: 7}, {ZERO: 9}), StoredProgress())


def decided_for_topic(
    of: MicroBatch, stored: StoredProgress, query: str | None = None
) -> tuple[dict[SourcePartition, int], dict[SourcePartition, int]] | None:
    """The offsets below which records are dropped, and the new offsets; None to skip the batch."""
    decision = decide_for_topic(SINK, of, stored, query)
    if isinstance(decision, SkipBatch):
        return None
    return dict(decision.below), dict(decision.progress.offsets)


def test_a_topic_gets_each_record_once_whatever_the_checkpoint_repeats() -> None:
    stored = StoredProgress(offsets={ZERO: 5, ONE: 7}, is_begun=True)
    assert decided_for_topic(batch(1, {ZERO: 2}, {ZERO: 5}), stored) is None
    assert decided_for_topic(batch(1, {ZERO: 2, ONE: 7}, {ZERO: 9, ONE: 7}), stored) == (
        {ZERO: 5},
        {ZERO: 9, ONE: 7},
    )
    assert decided_for_topic(batch(0, {}, {ZERO: 9}), stored) == ({ZERO: 5}, {ZERO: 9, ONE: 7})
    assert decided_for_topic(batch(3, {ZERO: 5}, {ZERO: 9}), stored) == ({}, {ZERO: 9, ONE: 7})


def test_a_topic_that_was_written_at_least_once_continues_at_its_checkpoint() -> None:
    assert decided_for_topic(batch(4, {ZERO: 7}, {ZERO: 9}), StoredProgress()) == ({}, {ZERO: 9})
    behind = StoredProgress(offsets={ZERO: 5}, is_begun=True)
    assert decided_for_topic(batch(4, {ZERO: 7}, {ZERO: 9}), behind) == ({}, {ZERO: 9})
    assert decided_for_topic(batch(4, {ZERO: 7}, {ZERO: 9}), StoredProgress(), "q") == (
        {},
        {ZERO: 9},
    )


def test_a_topic_of_a_query_with_state_gets_whole_batches_of_one_checkpoint() -> None:
    first = MicroBatch(id=4, start={ZERO: 7}, end={ZERO: 9}, digest=44)
    decision = decide_for_topic(SINK, first, StoredProgress(), "query")
    assert isinstance(decision, ApplyBatch)
    stored = parse_progress(decision.progress.to_json())
    assert isinstance(decide_for_topic(SINK, first, stored, "query"), SkipBatch)
    following = MicroBatch(id=5, start={ZERO: 9}, end={ZERO: 12}, digest=55, digest_before=44)
    assert isinstance(decide_for_topic(SINK, following, stored, "query"), ApplyBatch)
    with pytest.raises(CannotContinue, match="the topic was filled from another checkpoint"):
        decide_for_topic(SINK, following, stored, "another query")
    with pytest.raises(CannotContinue, match="batch 4 of the checkpoint has other records"):
        decide_for_topic(SINK, replace(first, digest=45), stored, "query")


def test_recreated_topic_is_read_from_the_start() -> None:
    again = SourcePartition("topic-b", 0)
    decision = decide_by_offsets(
        SINK, batch(1, {again: 0}, {again: 3}), StoredProgress(offsets={ZERO: 50})
    )
    assert not isinstance(decision, SkipBatch)
    assert decision.below == {}
    assert decision.progress.offsets == {ZERO: 50, again: 3}


def test_offset_log_of_spark_is_parsed() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"clicks":{"0":5,"1":7}}\n-\n{"logOffset":3}\n'
    assert read_offset_log(text) == {"clicks": {0: 5, 1: 7}}


def test_compaction_does_not_change_rows(tmp_path: Path) -> None:
    def open_() -> TableAttempt:
        return DeltaAttempt(str(tmp_path / "table"))

    for number in range(5):
        commit_batch(open_(), batch(number, {ZERO: number}, {ZERO: number + 1}))
    assert DeltaAttempt(str(tmp_path / "table")).compact() == 5
    assert offsets_of(open_) == [0, 1, 2, 3, 4]
    assert open_().stored_progress(SINK, [ZERO]).offsets == {ZERO: 5}
    assert commit_batch(open_(), batch(5, {ZERO: 5}, {ZERO: 6}))


def test_compaction_vacuums_files_older_than_the_retention(tmp_path: Path) -> None:
    def open_() -> DeltaAttempt:
        return DeltaAttempt(str(tmp_path))

    kept = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    DeltaTable.create(str(tmp_path), schema=Schema.from_arrow(SCHEMA), configuration=kept)
    for number in range(3):
        commit_batch(open_(), batch(number, {ZERO: number}, {ZERO: number + 1}))
    open_().compact()
    assert len([*tmp_path.glob("*.parquet")]) == 1
    assert offsets_of(open_) == [0, 1, 2]


def test_file_of_an_abandoned_task_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abandoned task may keep writing until the commit."""

    def open_() -> TableAttempt:
        return open_table("parquet", str(tmp_path), name="t")

    attempt = open_()
    attempt.stored_progress(SINK, [ZERO])
    files = written(attempt, [{"partition": 0, "offset": 0}])

    def straggle(folder: Path) -> None:
        (Path(attempt.folder) / "part-straggler.parquet").write_bytes(b"half a file")

    monkeypatch.setattr(parquet, "_sync", straggle)
    attempt.commit(files, SCHEMA, TableProgress(sink=SINK, offsets={ZERO: 1}))
    assert offsets_of(open_) == [0]
    attempt.close()
    assert [path.name for path in tmp_path.iterdir()] == ["batch=0000000000"]


def test_leftovers_of_a_dead_driver_are_removed_after_a_day(tmp_path: Path) -> None:
    def open_() -> TableAttempt:
        return open_table("parquet", str(tmp_path), name="t")

    left = open_()
    left.stored_progress(SINK, [ZERO])
    written(left, [{"partition": 0, "offset": 0}])
    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 1}))
    now = Path(left.folder).stat().st_mtime
    open_().remove_leftovers(now + 60)
    assert Path(left.folder).exists()
    open_().remove_leftovers(now + 25 * 60 * 60)
    assert not Path(left.folder).exists()
    assert offsets_of(open_) == [0]


def test_partitioned_delta_table_is_refused(tmp_path: Path) -> None:
    """Readers take the values of partition columns from the commit, not from the files."""
    path = str(tmp_path / "table")
    schema = Schema.from_arrow(SCHEMA)
    DeltaTable.create(path, schema=schema, partition_by=["partition"])
    with pytest.raises(CannotContinue, match="is partitioned by partition"):
        commit_batch(open_table("delta", path, name="t"), batch(0, {ZERO: 0}, {ZERO: 1}))


def test_iceberg_widens_only_by_its_specification(tmp_path: Path) -> None:
    def open_() -> TableAttempt:
        return open_table("iceberg", str(tmp_path), name="t")

    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 1}))
    wanted = pa.schema([("partition", pa.float64()), ("offset", pa.int64())])
    found = conflicts(open_().schema, wanted, open_().promotions)
    assert list(found) == ["partition"], "the row goes to the dead letters"
    assert conflicts(open_().schema, wanted) == {}
    with pytest.raises(CannotContinue, match="column partition is int32 in the table and double"):
        open_().commit([], wanted, TableProgress(sink=SINK, offsets={ZERO: 2}))
    inner = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.float64())])
    old, new = (pa.schema([("s", pa.list_(kind))]) for kind in inner)
    assert list(conflicts(old, new, open_().promotions)) == ["s"]
    assert conflicts(new, old, open_().promotions) == {}, "values are cast when written"


@pytest.mark.parametrize("kind", FORMATS)
def test_table_path_may_be_a_url(kind: str, tmp_path: Path) -> None:
    def open_() -> TableAttempt:
        return open_table(kind, f"file://{tmp_path}/some/table", name="t")

    commit_batch(open_(), batch(0, {ZERO: 0}, {ZERO: 2}))
    commit_batch(open_(), batch(1, {ZERO: 2}, {ZERO: 3}))
    assert offsets_of(open_) == [0, 1, 2]
    assert (tmp_path / "some/table").is_dir()


def test_s3a_becomes_s3_for_other_libraries() -> None:
    assert location("s3a://bucket/table") == "s3://bucket/table"
    assert location("s3://bucket/table") == "s3://bucket/table"
