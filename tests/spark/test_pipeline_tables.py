"""Every record once in a table, whatever happens to checkpoints, drivers and handles.

No Spark here: a batch is a range of offsets whose records are those numbers.
"""

import json
from collections.abc import Callable, Sequence
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
    Batch,
    Place,
    Progress,
    Skip,
    Stored,
    judge_records,
    judge_state,
    placed,
    read_offset_log,
)
from riverrun.pipeline.sinks.tables.attempt import Attempt, open_table
from riverrun.pipeline.sinks.tables.data_files import WrittenFile, location, write_files
from riverrun.pipeline.sinks.tables.schema_evolution import conflicts, evolve
from riverrun.pipeline.state.start_offsets import decide
from riverrun.pipeline.topics import Topics

SINK = "shop/orders"
ZERO = Place("topic-a", 0)
ONE = Place("topic-a", 1)
SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
FORMATS = ("delta", "iceberg", "parquet")

Look = Callable[[], Attempt]


@pytest.fixture(params=FORMATS)
def look(request: pytest.FixtureRequest, tmp_path: Path) -> Look:
    """A fresh look at the table, as a driver takes it for each batch."""
    return lambda: open_table(request.param, str(tmp_path / "table"), name="orders")


def batch(
    number: int, start: dict[Place, int] | None = None, end: dict[Place, int] | None = None
) -> Batch:
    return Batch(id=number, start=start or {}, end=end or {})


def written(
    attempt: Attempt, rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA
) -> list[WrittenFile]:
    whole = pa.RecordBatch.from_pylist(list(rows), schema=schema)
    wanted = evolve(attempt.schema, schema).schema
    listed = write_files(iter([whole]), attempt.folder, wanted)
    return [WrittenFile(**row) for told in listed for row in told.to_pylist()]


def records(batch: Batch, below: Any) -> list[dict[str, int]]:
    return [
        {"partition": place.partition, "offset": offset}
        for place, end in batch.end.items()
        for offset in range(batch.start.get(place, 0), end)
        if offset >= below.get(place, 0)
    ]


def bring(attempt: Attempt, batch: Batch) -> bool:
    """What a driver does with a batch; False if the table had it."""
    decision = judge_records(SINK, batch, attempt.stored(SINK, batch.end))
    if isinstance(decision, Skip):
        return False
    files = written(attempt, records(batch, decision.below))
    attempt.commit(files, evolve(attempt.schema, SCHEMA).schema, decision.progress)
    return True


def rows_of(look: Look) -> list[dict[str, Any]]:
    attempt: Any = look()
    kind = type(attempt).__name__
    if kind == "DeltaAttempt":
        table = attempt._table.to_pyarrow_table()
    elif kind == "IcebergAttempt":
        table = attempt._table.scan().to_arrow()
    else:
        found = pads.dataset(attempt._path, schema=attempt.schema, partitioning=None)
        table = found.to_table()
    return sorted(table.to_pylist(), key=json.dumps)


def offsets_of(look: Look, partition: int = 0) -> list[int]:
    return sorted(row["offset"] for row in rows_of(look) if row["partition"] == partition)


def test_batches_follow_each_other(look: Look) -> None:
    assert bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert bring(look(), batch(1, {ZERO: 3}, {ZERO: 5, ONE: 2}))
    assert offsets_of(look) == [0, 1, 2, 3, 4]
    assert offsets_of(look, 1) == [0, 1]
    assert look().stored(SINK, [ZERO, ONE]).offsets == {ZERO: 5, ONE: 2}


def test_a_replayed_batch_is_passed_over(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert not bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert offsets_of(look) == [0, 1, 2]


def test_a_lost_checkpoint_goes_on_where_the_table_ends(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    stored = look().stored(SINK, [ZERO, ONE])
    topics = Topics(ids={"orders": "topic-a"}, partitions={"orders": [0, 1]})
    starts = decide(topics, known=None, finished={}, stored=stored, is_table=True)
    assert starts == {"orders": {0: 3, 1: EARLIEST}}
    assert bring(look(), batch(0, {ZERO: 3}, {ZERO: 4}))
    assert offsets_of(look) == [0, 1, 2, 3]


def test_a_lost_checkpoint_that_begins_anew_doubles_nothing(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    bring(look(), batch(1, {ZERO: 3}, {ZERO: 6}))
    assert bring(look(), batch(0, {ZERO: 0}, {ZERO: 8}))
    assert offsets_of(look) == list(range(8))


def test_of_two_drivers_that_saw_the_same_table_one_commits(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    first, second = look(), look()
    assert bring(first, batch(1, {ZERO: 2}, {ZERO: 4}))
    with pytest.raises(CommitConflict):
        bring(second, batch(1, {ZERO: 2}, {ZERO: 5}))
    assert bring(look(), batch(1, {ZERO: 2}, {ZERO: 5})), "the second looks again"
    assert offsets_of(look) == [0, 1, 2, 3, 4]


def test_of_two_drivers_that_make_the_table_one_does(look: Look) -> None:
    first, second = look(), look()
    assert bring(first, batch(0, {ZERO: 0}, {ZERO: 2}))
    with pytest.raises(CommitConflict):
        bring(second, batch(0, {ZERO: 0}, {ZERO: 2}))
    assert offsets_of(look) == [0, 1]


def test_a_driver_that_looked_long_ago_is_refused(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    stale = look()
    for number in range(1, 4):
        bring(look(), batch(number, {ZERO: number * 2}, {ZERO: number * 2 + 2}))
    with pytest.raises(CommitConflict):
        bring(stale, batch(1, {ZERO: 2}, {ZERO: 4}))
    assert offsets_of(look) == list(range(8))


def test_a_stale_driver_with_new_columns_is_refused_too(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    stale = look()
    stale.stored(SINK, [ZERO])
    bring(look(), batch(1, {ZERO: 2}, {ZERO: 4}))
    wider = SCHEMA.append(pa.field("note", pa.string()))
    row = {"partition": 0, "offset": 2, "note": "again"}
    files = written(stale, [row], wider)
    with pytest.raises(CommitConflict):
        stale.commit(files, wider, Progress(sink=SINK, offsets={ZERO: 4}))
    assert offsets_of(look) == [0, 1, 2, 3]


def test_a_batch_without_rows_moves_the_offsets(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 0}))
    assert look().stored(SINK, [ZERO]).offsets == {ZERO: 0}
    assert rows_of(look) == []


def test_new_columns_and_wider_types_evolve_the_table(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 1}))
    attempt = look()
    stored = attempt.stored(SINK, [ZERO])
    wider = pa.schema([("partition", pa.int64()), ("offset", pa.int64()), ("note", pa.string())])
    row = {"partition": 2**40, "offset": 1, "note": "new"}
    decision = judge_records(SINK, batch(1, {ZERO: 1}, {ZERO: 2}), stored)
    assert not isinstance(decision, Skip)
    attempt.commit(written(attempt, [row], wider), wider, decision.progress)
    assert rows_of(look) == sorted(
        [row, {"partition": 0, "offset": 0, "note": None}], key=json.dumps
    )
    assert look().stored(SINK, [ZERO]).offsets == {ZERO: 2}


def test_other_changes_of_a_column_are_refused(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 1}))
    with pytest.raises(CannotContinue, match="column offset is int64 in the table and string"):
        evolve(look().schema, pa.schema([("offset", pa.string())]))


def test_a_partition_that_only_the_checkpoint_knows_is_refused(look: Look) -> None:
    """Of a topic that was made again, say: records before the offset would be lost in silence."""
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    again = Place("topic-b", 0)
    with pytest.raises(CannotContinue, match="goes on at offset 2, but the table has nothing"):
        bring(look(), batch(1, {ZERO: 2, again: 2}, {ZERO: 2, again: 4}))
    assert bring(look(), batch(1, {ZERO: 2}, {ZERO: 2, again: 4}))


def test_two_sinks_of_one_table_do_not_know_each_other(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    assert look().stored("another", [ZERO]).is_blank
    other = look()
    other.stored("another", [ZERO])
    other.commit([], SCHEMA, Progress(sink="another", offsets={ZERO: 9}))
    assert look().stored(SINK, [ZERO]).offsets == {ZERO: 2}
    assert look().stored("another", [ZERO]).offsets == {ZERO: 9}


def test_files_of_a_task_that_was_tried_again_are_not_in_the_table(look: Look) -> None:
    attempt = look()
    attempt.stored(SINK, [ZERO])
    row = {"partition": 0, "offset": 0}
    written(attempt, [row])
    attempt.commit(written(attempt, [row]), SCHEMA, Progress(sink=SINK, offsets={ZERO: 1}))
    assert rows_of(look) == [row]


def logged(number: int, digest: int, before: int | None) -> Batch:
    """A batch of a query with state, by what Spark wrote down of it and of the one before."""
    return Batch(id=number, start={}, end={ZERO: number}, digest=digest, digest_before=before)


def bring_state(look: Look, batch: Batch, query: str = "query") -> bool:
    attempt = look()
    decision = judge_state(SINK, batch, attempt.stored(SINK, [ZERO]), query)
    if isinstance(decision, Skip):
        return False
    files = written(attempt, [{"partition": 0, "offset": batch.id}])
    attempt.commit(files, SCHEMA, decision.progress)
    return True


def test_a_query_with_state_brings_each_batch_of_its_checkpoint_once(look: Look) -> None:
    brought = [
        bring_state(look, logged(0, 100, None)),
        bring_state(look, logged(1, 101, 100)),
        bring_state(look, logged(1, 101, 100)),
        bring_state(look, logged(2, 102, 101)),
    ]
    assert brought == [True, True, False, True]
    assert offsets_of(look) == [0, 1, 2]
    with pytest.raises(CannotContinue, match="another checkpoint"):
        bring_state(look, logged(3, 103, 102), "another query")
    with pytest.raises(CannotContinue, match="older state"):
        bring_state(look, logged(9, 109, 108))


def test_an_old_checkpoint_or_a_copy_ends_a_query_with_state(look: Look) -> None:
    """It counts on with the same numbers, but its batches are others."""
    bring_state(look, logged(0, 100, None))
    bring_state(look, logged(1, 101, 100))
    bring_state(look, logged(2, 102, 101))
    for other in (logged(1, 201, 100), logged(2, 202, 201), logged(3, 203, 202)):
        with pytest.raises(CannotContinue, match="an older one or a copy"):
            bring_state(look, other)
    assert bring_state(look, logged(3, 103, 102))
    assert offsets_of(look) == [0, 1, 2, 3]


def test_two_drivers_that_began_at_other_ends_of_the_log_lose_nothing(look: Look) -> None:
    """Both from the latest offset, before the table was there."""
    assert bring(look(), batch(0, {ZERO: 1000}, {ZERO: 1000}))
    assert bring(look(), batch(1, {ZERO: 1000}, {ZERO: 1005}))
    with pytest.raises(CannotContinue, match="goes on at offset 1010, but the table ends at 1005"):
        bring(look(), batch(0, {ZERO: 1010}, {ZERO: 1010}))
    with pytest.raises(CannotContinue, match="goes on at offset 7, but the table has nothing"):
        bring(look(), batch(0, {ZERO: 1005, ONE: 7}, {ZERO: 1005, ONE: 7}))
    assert bring(look(), batch(2, {ZERO: 1005}, {ZERO: 1020}))
    assert offsets_of(look) == list(range(1000, 1020))


def test_a_table_remembers_that_it_began_when_its_topic_is_another_one(look: Look) -> None:
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 3}))
    assert not look().stored(SINK, [Place("topic-b", 0)]).is_blank


def test_a_query_that_followed_a_table_does_not_begin_a_new_one() -> None:
    first = Batch(id=0, start={ZERO: 1000}, end={ZERO: 1005}, is_continued=True)
    with pytest.raises(CannotContinue, match="knows nothing"):
        judge_records(SINK, first, Stored())


def test_a_topic_without_an_id_is_not_left_out_of_a_batch() -> None:
    with pytest.raises(KafkaError, match="topic b"):
        placed({"a": {0: 5}, "b": {0: 7}}, {"a": "topic-a"})


def test_a_table_that_is_behind_its_checkpoint_stops_the_pipeline() -> None:
    with pytest.raises(CannotContinue, match="topic-a-0: the checkpoint goes on at offset 7"):
        judge_records(SINK, batch(4, {ZERO: 7}, {ZERO: 9}), Stored(offsets={ZERO: 5}))


def test_a_table_that_was_deleted_stops_the_pipeline() -> None:
    with pytest.raises(CannotContinue, match="knows nothing"):
        judge_records(SINK, batch(4, {ZERO: 7}, {ZERO: 9}), Stored())


def test_a_topic_made_again_begins_anew() -> None:
    again = Place("topic-b", 0)
    decision = judge_records(SINK, batch(1, {again: 0}, {again: 3}), Stored(offsets={ZERO: 50}))
    assert not isinstance(decision, Skip)
    assert decision.below == {}
    assert decision.progress.offsets == {ZERO: 50, again: 3}


def test_spark_writes_the_offsets_of_a_batch_before_it_begins() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"clicks":{"0":5,"1":7}}\n-\n{"logOffset":3}\n'
    assert read_offset_log(text) == {"clicks": {0: 5, 1: 7}}


def test_small_files_are_compacted_without_a_change_of_rows(tmp_path: Path) -> None:
    from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

    def look() -> Attempt:
        return DeltaAttempt(str(tmp_path / "table"))

    for number in range(5):
        bring(look(), batch(number, {ZERO: number}, {ZERO: number + 1}))
    assert DeltaAttempt(str(tmp_path / "table")).compact() == 5
    assert offsets_of(look) == [0, 1, 2, 3, 4]
    assert look().stored(SINK, [ZERO]).offsets == {ZERO: 5}
    assert bring(look(), batch(5, {ZERO: 5}, {ZERO: 6}))


def test_a_compaction_removes_what_is_older_than_the_table_keeps(tmp_path: Path) -> None:
    from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

    def look() -> DeltaAttempt:
        return DeltaAttempt(str(tmp_path))

    kept = {"delta.deletedFileRetentionDuration": "interval 0 hours"}
    DeltaTable.create(str(tmp_path), schema=Schema.from_arrow(SCHEMA), configuration=kept)
    for number in range(3):
        bring(look(), batch(number, {ZERO: number}, {ZERO: number + 1}))
    look().compact()
    assert len([*tmp_path.glob("*.parquet")]) == 1
    assert offsets_of(look) == [0, 1, 2]


def test_a_file_of_a_straggling_task_is_in_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was given up may go on, until the very moment of the commit."""
    from riverrun.pipeline.sinks.tables import parquet

    def look() -> Attempt:
        return open_table("parquet", str(tmp_path), name="t")

    attempt = look()
    attempt.stored(SINK, [ZERO])
    files = written(attempt, [{"partition": 0, "offset": 0}])

    def straggle(folder: Path) -> None:
        (Path(attempt.folder) / "part-straggler.parquet").write_bytes(b"half a file")

    monkeypatch.setattr(parquet, "_sync", straggle)
    attempt.commit(files, SCHEMA, Progress(sink=SINK, offsets={ZERO: 1}))
    assert offsets_of(look) == [0]
    attempt.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["batch=0000000000"]


def test_what_a_dead_driver_left_is_removed_after_a_day(tmp_path: Path) -> None:
    def look() -> Attempt:
        return open_table("parquet", str(tmp_path), name="t")

    left = look()
    left.stored(SINK, [ZERO])
    written(left, [{"partition": 0, "offset": 0}])
    bring(look(), batch(0, {ZERO: 0}, {ZERO: 1}))
    now = Path(left.folder).stat().st_mtime
    look().tidy(now + 60)
    assert Path(left.folder).exists()
    look().tidy(now + 25 * 60 * 60)
    assert not Path(left.folder).exists()
    assert offsets_of(look) == [0]


def test_a_divided_delta_table_is_refused(tmp_path: Path) -> None:
    """Its readers take the values of those columns from the commit, not from the files."""
    path = str(tmp_path / "table")
    schema = Schema.from_arrow(SCHEMA)
    DeltaTable.create(path, schema=schema, partition_by=["partition"])
    with pytest.raises(CannotContinue, match="is divided by partition"):
        bring(open_table("delta", path, name="t"), batch(0, {ZERO: 0}, {ZERO: 1}))


def test_iceberg_widens_only_what_its_specification_lets(tmp_path: Path) -> None:
    def look() -> Attempt:
        return open_table("iceberg", str(tmp_path), name="t")

    bring(look(), batch(0, {ZERO: 0}, {ZERO: 1}))
    wanted = pa.schema([("partition", pa.float64()), ("offset", pa.int64())])
    found = conflicts(look().schema, wanted, look().promotions)
    assert list(found) == ["partition"], "it goes to the dead letters"
    assert conflicts(look().schema, wanted) == {}
    with pytest.raises(CannotContinue, match="column partition is int32 in the table and double"):
        look().commit([], wanted, Progress(sink=SINK, offsets={ZERO: 2}))
    inner = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.float64())])
    old, new = (pa.schema([("s", pa.list_(kind))]) for kind in inner)
    assert list(conflicts(old, new, look().promotions)) == ["s"]
    assert conflicts(new, old, look().promotions) == {}, "what is written is cast"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_may_be_named_by_a_url(kind: str, tmp_path: Path) -> None:
    def look() -> Attempt:
        return open_table(kind, f"file://{tmp_path}/some/table", name="t")

    bring(look(), batch(0, {ZERO: 0}, {ZERO: 2}))
    bring(look(), batch(1, {ZERO: 2}, {ZERO: 3}))
    assert offsets_of(look) == [0, 1, 2]
    assert (tmp_path / "some/table").is_dir()


def test_other_libraries_know_another_name_of_s3() -> None:
    assert location("s3a://bucket/table") == "s3://bucket/table"
    assert location("s3://bucket/table") == "s3://bucket/table"
