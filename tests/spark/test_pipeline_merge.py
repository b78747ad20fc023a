"""Changes become the current state: the newest row of each key, without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.pipeline.declaration.model import TableSink
from riverrun.pipeline.errors import CommitConflict
from riverrun.pipeline.offsets import Progress, Skip, judge_records
from riverrun.pipeline.sinks.tables.attempt import open_table
from riverrun.pipeline.sinks.writing import order_of, rankings
from tests.spark.test_pipeline_tables import SINK, ZERO, batch, rows_of


def merged(path: Path, number: int, rows: list[dict[str, Any]], order: str | None = None) -> None:
    from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

    attempt = DeltaAttempt(str(path))
    decision = judge_records(
        SINK, batch(number, {ZERO: number}, {ZERO: number + 1}), attempt.stored(SINK, [ZERO])
    )
    assert not isinstance(decision, Skip)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_offset", pa.int64())])
    table = pa.Table.from_pylist(rows, schema=schema)
    attempt.merge(
        table.append_column("gone", table["name"].is_null()), decision.progress,
        keys=["id"], order=order, delete="gone",
    )  # fmt: skip


def test_changes_are_merged_in_the_order_of_batches(tmp_path: Path) -> None:
    path = tmp_path / "table"
    merged(path, 0, [{"id": 1, "name": "a", "_offset": 0}, {"id": 2, "name": "b", "_offset": 1}])
    merged(path, 1, [{"id": 1, "name": "c", "_offset": 2}, {"id": 2, "name": None, "_offset": 3}])
    merged(path, 2, [{"id": 9, "name": None, "_offset": 4}])
    attempt = open_table("delta", str(path), name="t")
    assert rows_of(lambda: attempt) == [{"id": 1, "name": "c", "_offset": 2}]
    assert attempt.stored(SINK, [ZERO]).offsets == {ZERO: 3}


def test_a_key_may_move_to_a_partition_with_smaller_offsets(tmp_path: Path) -> None:
    path = tmp_path / "table"
    old = {"name": "old", "_offset": 5000}
    merged(path, 0, [{"id": 1, **old}, {"id": 2, **old}])
    moved = [{"id": 1, "name": "new", "_offset": 0}, {"id": 2, "name": None, "_offset": 1}]
    order = order_of(sink_with())
    assert order is None
    assert order_of(sink_with(order="_offset")) is None, "said or not, it is the same order"
    merged(path, 1, moved, order)
    table = open_table("delta", str(path), name="t")
    assert rows_of(lambda: table) == [{"id": 1, "name": "new", "_offset": 0}]


def test_the_larger_order_wins_and_none_is_the_smallest(tmp_path: Path) -> None:
    path = tmp_path / "table"
    first = [{"id": 1, "name": "a", "_offset": None}, {"id": 2, "name": "b", "_offset": 7}]
    merged(path, 0, first, "_offset")
    second = [{"id": 1, "name": "c", "_offset": 1}, {"id": 2, "name": "late", "_offset": 6}]
    merged(path, 1, second, "_offset")
    merged(path, 2, [{"id": 2, "name": "none", "_offset": None}], "_offset")
    table = open_table("delta", str(path), name="t")
    assert [row["name"] for row in rows_of(lambda: table)] == ["c", "b"]


def sink_with(order: str | None = None) -> TableSink:
    return TableSink(
        name="s", input="a", format="delta", path="t", table="s", catalog=None, is_merged=True,
        keys=("id",), order=order, delete=None, compact_every=0, trigger="1 second",
        output="append",
    )  # fmt: skip


def test_the_newest_change_in_a_batch_is_told_by_offset_then_by_time() -> None:
    """Offsets of two partitions do not compare; times of one partition may go back."""
    columns = ["id", "_topic", "_partition", "_offset", "_timestamp"]
    by_place = [
        (["id", "_topic", "_partition"], ["_offset"]),
        (["id"], ["_timestamp", "_offset"]),
    ]
    assert rankings(sink_with(), columns) == by_place
    assert rankings(sink_with(order="_offset"), columns) == by_place
    assert rankings(sink_with(), ["id", "_timestamp", "_offset"]) == [(["id"], ["_offset"])]
    assert rankings(sink_with(order="at"), columns) == [(["id"], ["at", "_timestamp", "_offset"])]
    assert rankings(sink_with(), ["id", "total"]) == [], "an aggregate has a row for each key"


def test_a_stale_merge_is_refused(tmp_path: Path) -> None:
    from riverrun.pipeline.sinks.tables.delta import DeltaAttempt

    path = tmp_path / "table"
    merged(path, 0, [{"id": 1, "name": "a", "_offset": 0}])
    stale = DeltaAttempt(str(path))
    stale.stored(SINK, [ZERO])
    merged(path, 1, [{"id": 1, "name": "b", "_offset": 1}])
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_offset", pa.int64())])
    for rows in ([{"id": 1, "name": "c", "_offset": 2}], []):
        with pytest.raises(CommitConflict):
            stale.merge(
                pa.Table.from_pylist(rows, schema=schema),
                Progress(sink=SINK, offsets={ZERO: 2}),
                keys=["id"], order="_offset", delete=None,
            )  # fmt: skip
