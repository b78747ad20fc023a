"""A merge keeps the newest row of each key. These tests run without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from riverrun.pipeline.declaration.model import TableSink
from riverrun.pipeline.errors import CommitConflict
from riverrun.pipeline.offsets import SkipBatch, TableProgress, decide_by_offsets
from riverrun.pipeline.sinks.tables.attempt import open_table
from riverrun.pipeline.sinks.tables.delta import DeltaAttempt
from riverrun.pipeline.sinks.writing import newest_row_orders, order_column
from tests.spark.test_pipeline_tables import SINK, ZERO, batch, rows_of


def merged(path: Path, number: int, rows: list[dict[str, Any]], order: str | None = None) -> None:
    attempt = DeltaAttempt(str(path))
    decision = decide_by_offsets(
        SINK,
        batch(number, {ZERO: number}, {ZERO: number + 1}),
        attempt.stored_progress(SINK, [ZERO]),
    )
    assert not isinstance(decision, SkipBatch)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_offset", pa.int64())])
    table = pa.Table.from_pylist(rows, schema=schema)
    attempt.merge(
        table.append_column("gone", table["name"].is_null()),
        decision.progress,
        keys=["id"],
        order=order,
        delete="gone",
    )


def test_changes_are_merged_in_batch_order(tmp_path: Path) -> None:
    path = tmp_path / "table"
    merged(path, 0, [{"id": 1, "name": "a", "_offset": 0}, {"id": 2, "name": "b", "_offset": 1}])
    merged(path, 1, [{"id": 1, "name": "c", "_offset": 2}, {"id": 2, "name": None, "_offset": 3}])
    merged(path, 2, [{"id": 9, "name": None, "_offset": 4}])
    attempt = open_table("delta", str(path), name="t")
    assert rows_of(lambda: attempt) == [{"id": 1, "name": "c", "_offset": 2}]
    assert attempt.stored_progress(SINK, [ZERO]).offsets == {ZERO: 3}


def test_key_may_move_to_a_partition_with_smaller_offsets(tmp_path: Path) -> None:
    path = tmp_path / "table"
    old: dict[str, Any] = {"name": "old", "_offset": 5000}
    merged(path, 0, [{"id": 1, **old}, {"id": 2, **old}])
    moved: list[dict[str, Any]] = [
        {"id": 1, "name": "new", "_offset": 0},
        {"id": 2, "name": None, "_offset": 1},
    ]
    order = order_column(sink_with())
    assert order is None
    assert order_column(sink_with(order="_offset")) is None, "an explicit _offset is the default"
    merged(path, 1, moved, order)
    table = open_table("delta", str(path), name="t")
    assert rows_of(lambda: table) == [{"id": 1, "name": "new", "_offset": 0}]


def test_larger_order_wins_and_null_is_the_smallest(tmp_path: Path) -> None:
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
        name="s",
        input="a",
        format="delta",
        path="t",
        table="s",
        catalog=None,
        is_merged=True,
        keys=("id",),
        order=order,
        delete=None,
        compact_every=0,
        trigger="1 second",
        output="append",
    )


def test_newest_change_is_found_by_offset_then_by_timestamp() -> None:
    """Offsets of two partitions do not compare, and timestamps of one partition may go back."""
    columns = ["id", "_topic", "_partition", "_offset", "_timestamp"]
    by_place = [
        (["id", "_topic", "_partition"], ["_offset"]),
        (["id"], ["_timestamp", "_offset"]),
    ]
    assert newest_row_orders(sink_with(), columns) == by_place
    assert newest_row_orders(sink_with(order="_offset"), columns) == by_place
    assert newest_row_orders(sink_with(), ["id", "_timestamp", "_offset"]) == [
        (["id"], ["_offset"])
    ]
    assert newest_row_orders(sink_with(order="at"), columns) == [
        (["id"], ["at", "_timestamp", "_offset"])
    ]
    assert newest_row_orders(sink_with(), ["id", "total"]) == [], "an aggregate has one row per key"


def test_stale_merge_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    merged(path, 0, [{"id": 1, "name": "a", "_offset": 0}])
    stale = DeltaAttempt(str(path))
    stale.stored_progress(SINK, [ZERO])
    merged(path, 1, [{"id": 1, "name": "b", "_offset": 1}])
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("_offset", pa.int64())])
    for rows in ([{"id": 1, "name": "c", "_offset": 2}], []):
        with pytest.raises(CommitConflict):
            stale.merge(
                pa.Table.from_pylist(rows, schema=schema),
                TableProgress(sink=SINK, offsets={ZERO: 2}),
                keys=["id"],
                order="_offset",
                delete=None,
            )
