"""Pipelines on a real cluster and real Spark, with lost checkpoints, topics and records."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.spark.pipelines import Runs, headers_of, read, write
from tests.spark.test_source_cluster import create, delete, delete_before

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def runs(spark: SparkSession, spark_cluster: Cluster, tmp_path: Path) -> Runs:
    return Runs(spark, spark_cluster.bootstrap, tmp_path)


def numbers(start: int, end: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in range(start, end)]


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


def to_table(topic: str, *, more: str = "", schema: str = "id BIGINT, name STRING") -> str:
    return f"""
[pipeline]
name = "numbers"
[sources.numbers]
topic = "{topic}"
schema = "{schema}"
rows_per_batch = 40
[sinks.out]
path = "table"
{more}
"""


def test_every_record_is_in_the_table_exactly_once(runs: Runs, topic: str) -> None:
    """This holds even if the checkpoint is lost, or an old one is restored."""
    write(runs.bootstrap, topic, [*numbers(0, 100), "no JSON", {"id": "text"}, None])
    supervisor = runs.once(to_table(topic, more="compact_every = 2"))
    assert ids(runs.rows("table")) == list(range(100))
    assert supervisor.queries[0].query.counts.compacted >= 2

    checkpoint = runs.folder / ".riverrun/numbers/checkpoints/out"
    stale = runs.folder / "stale"
    shutil.copytree(checkpoint, stale)
    shutil.rmtree(checkpoint)
    write(runs.bootstrap, topic, numbers(100, 140))
    runs.once(to_table(topic))
    assert ids(runs.rows("table")) == list(range(140))

    shutil.rmtree(checkpoint)
    shutil.copytree(stale, checkpoint)
    write(runs.bootstrap, topic, numbers(140, 150))
    supervisor = runs.once(to_table(topic))
    assert ids(runs.rows("table")) == list(range(150))
    shown = supervisor.status().queries[0]
    assert (shown.rows, shown.total) == (10, 150), "of this run, and of the table"

    dead = read(runs.bootstrap, f"{topic}.dead-letters")
    reasons = {headers_of(record)["riverrun.reason"] for record in dead}
    assert reasons == {
        "the value is null",
        "the value is not JSON: expecting value at character 0",
        'id is "text", not a bigint',
    }
    assert {headers_of(record)["riverrun.sink"] for record in dead} == {"out"}
    assert {record.value for record in dead} == {b"no JSON", b'{"id": "text"}', None}


def test_latest_is_resolved_at_the_first_start(runs: Runs, topic: str) -> None:
    """This holds even if the checkpoint has only Spark's empty folders."""
    text = to_table(topic).replace("rows_per_batch", 'start = "latest"\nrows_per_batch')
    write(runs.bootstrap, topic, numbers(0, 10))
    runs.once(text)
    write(runs.bootstrap, topic, numbers(10, 20))
    checkpoint = runs.folder / ".riverrun/numbers/checkpoints/out"
    for name in ("offsets", "commits"):
        shutil.rmtree(checkpoint / name)
        (checkpoint / name).mkdir()
    runs.once(text)
    assert ids(runs.rows("table")) == list(range(10, 20))


def test_schema_is_inferred_once_and_extended(runs: Runs, topic: str) -> None:
    text = to_table(topic, schema="infer")
    write(runs.bootstrap, topic, numbers(0, 5))
    runs.once(text)
    write(runs.bootstrap, topic, [{"id": 5, "name": "x", "new": {"deep": 1.5}}, {"id": "five"}])
    runs.once(text)
    rows = runs.rows("table")
    assert ids(rows) == [0, 1, 2, 3, 4, 5]
    assert [row["new"] for row in rows if row["id"] == 5] == [{"deep": 1.5}]
    assert len(read(runs.bootstrap, f"{topic}.dead-letters")) == 1


def test_rows_that_do_not_fit_the_table_are_dead_letters(runs: Runs, topic: str) -> None:
    write(runs.bootstrap, topic, numbers(0, 5))
    runs.once(to_table(topic))
    write(runs.bootstrap, topic, [{"id": 5}, {"id": 6, "name": 7}])
    supervisor = runs.once(to_table(topic, schema="id BIGINT, name BIGINT, new DOUBLE"))
    rows = runs.rows("table")
    assert ids(rows) == [0, 1, 2, 3, 4, 5]
    assert [(row["name"], row["new"]) for row in rows if row["id"] == 5] == [(None, None)]
    (dead,) = read(runs.bootstrap, f"{topic}.dead-letters")
    headers = headers_of(dead)
    assert headers["riverrun.reason"].startswith("column name is string in the table and int64")
    assert (headers["riverrun.topic"], headers["riverrun.pipeline"]) == (topic, "numbers")
    assert headers["riverrun.sink"] == "out"
    assert json.loads(dead.value or b"")["name"] == 7
    assert supervisor.queries[0].status.dead_letters == 1


def test_recreated_topic_is_read_from_its_start(
    runs: Runs, spark_cluster: Cluster, topic: str
) -> None:
    """Although it has more records than the checkpoint had read of the old topic."""
    text = f"""{to_table(topic)}
[sinks.copy]
input = "numbers"
topic = "{topic}-copy"
"""
    write(runs.bootstrap, topic, numbers(0, 20))
    runs.once(text)
    delete(spark_cluster, topic)
    write(runs.bootstrap, topic, numbers(100, 150))
    supervisor = runs.once(text)
    assert supervisor.failures == []
    wanted = [*range(20), *range(100, 150)]
    assert ids(runs.rows("table")) == wanted
    copies = [json.loads(record.value or b"") for record in read(runs.bootstrap, f"{topic}-copy")]
    assert ids(copies) == wanted


def test_lost_records_end_the_run_unless_data_loss_is_allowed(
    runs: Runs, spark_cluster: Cluster, topic: str
) -> None:
    create(spark_cluster, topic)
    write(runs.bootstrap, topic, numbers(0, 20))
    runs.once(to_table(topic))
    write(runs.bootstrap, topic, numbers(20, 40))
    delete_before(spark_cluster, topic, 30)
    supervisor = runs.once(to_table(topic))
    (reason,) = supervisor.failures
    assert f"offsets 20 to 29 of {topic}-0 were deleted" in reason
    assert 'on_data_loss = "go-on"' in reason
    lenient = to_table(topic).replace("rows_per_batch", 'on_data_loss = "go-on"\nrows_per_batch')
    runs.once(lenient)
    assert ids(runs.rows("table")) == [*range(20), *range(30, 40)]


def test_stateful_query_refuses_to_continue_without_its_checkpoint(runs: Runs, topic: str) -> None:
    text = f"""
[pipeline]
name = "counts"
[sources.numbers]
topic = "{topic}"
schema = "id BIGINT, time TIMESTAMP"
watermark = {{ column = "time", delay = "0 seconds" }}
[transforms.counts]
sql = "SELECT window(time, '1 minute') AS w, count(*) AS n FROM numbers GROUP BY w"
[transforms.flat]
sql = "SELECT w.start AS began, n FROM counts"
[sinks.out]
input = "flat"
path = "table"
"""
    minutes = [{"id": n, "time": f"2026-01-01T00:{n // 10:02}:00Z"} for n in range(50)]
    write(runs.bootstrap, topic, [*minutes, "broken"])
    runs.once(text)
    runs.once(text)
    assert sorted(row["n"] for row in runs.rows("table")) == [10, 10, 10, 10]
    assert len(read(runs.bootstrap, f"{topic}.dead-letters")) == 1
    shutil.rmtree(runs.folder / ".riverrun")
    supervisor = runs.once(text)
    assert "Restore the checkpoint, or delete the table" in supervisor.failures[0]


def test_merge_keeps_the_current_state(runs: Runs, topic: str) -> None:
    text = f"""
pipeline: {{name: people}}
sources:
  changes: {{topic: "{topic}", schema: "id BIGINT, city STRING", tombstones: keep}}
transforms:
  current:
    sql: >
      SELECT coalesce(id, try_cast(_key AS BIGINT)) AS id, city, id IS NULL AS gone, _partition,
             _timestamp, _offset
      FROM changes
sinks:
  people: {{input: current, path: table, mode: merge, keys: [id], delete: gone}}
"""
    changes: list[Any] = [
        {"id": 1, "city": "Oslo"},
        {"id": 2, "city": "Lima"},
        {"id": 1, "city": "Pune"},
    ]
    write(runs.bootstrap, topic, changes, keys=["1", "2", "1"])
    runs.once(text, "people.yaml")
    write(runs.bootstrap, topic, [None, {"id": 3, "city": "Kyiv"}], keys=["2", "3"])
    write(runs.bootstrap, topic, [None, None], keys=["no number", "nor this"])
    supervisor = runs.once(text, "people.yaml")
    found = {row["id"]: row["city"] for row in runs.rows("table")}
    assert found == {1: "Pune", 3: "Kyiv"}
    dead = read(runs.bootstrap, f"{topic}.dead-letters")
    assert {headers_of(record)["riverrun.reason"] for record in dead} == {"the key id is null"}
    assert len(dead) == supervisor.queries[0].status.dead_letters == 2, (
        "each of them, not only the newest"
    )


def test_rows_become_records_of_another_topic(runs: Runs, topic: str) -> None:
    text = f"""
[pipeline]
name = "copy"
[sources.numbers]
topic = "{topic}"
schema = "id BIGINT, name STRING"
[transforms.even]
sql = "SELECT id, upper(name) AS name FROM numbers WHERE id % 2 = 0"
[sinks.out]
input = "even"
topic = "{topic}-even"
key = "id"
"""
    write(runs.bootstrap, topic, numbers(0, 6))
    runs.once(text)
    supervisor = runs.once(text)
    shown = supervisor.status().queries[0]
    assert (shown.rows, shown.total) == (0, 3), "of this run, and of the checkpoint"
    ends = {f"{topic}-{index}": 2 for index in range(3)}
    assert shown.positions == ends, "two records in each partition"
    found = {record.key: record.value for record in read(runs.bootstrap, f"{topic}-even")}
    assert found == {
        b"0": b'{"id":0,"name":"N0"}',
        b"2": b'{"id":2,"name":"N2"}',
        b"4": b'{"id":4,"name":"N4"}',
    }


def test_files_become_records(runs: Runs, topic: str) -> None:
    (runs.folder / "in").mkdir()
    (runs.folder / "in/a.csv").write_text("1,one\n2,two\n")
    text = f"""
[pipeline]
name = "files"
[sources.lines]
files = "in"
format = "csv"
schema = "id INT, name STRING"
[sinks.out]
topic = "{topic}"
"""
    runs.once(text)
    found = sorted(record.value or b"" for record in read(runs.bootstrap, topic))
    assert found == [b'{"id":1,"name":"one"}', b'{"id":2,"name":"two"}']
