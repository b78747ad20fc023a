"""Parts of a running pipeline die: an executor, a Python worker, a broker, the driver.

One driver runs all kinds of queries (topic to table, topic to topic, files to topic), because a
driver with its own executors takes long to start. Crashes between two commits and concurrent
drivers are simulated in the shared session.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as pads
import pyspark
import pytest
from pyspark.sql import SparkSession

from riverrun.pipeline.audit.replica_reader import ReplicaCopy
from riverrun.pipeline.audit.replicas import (
    COPY_DDL,
    FOUND_DDL,
    audit_replicas,
    compare_copies,
    find_replicas,
)
from riverrun.pipeline.run import batches
from riverrun.pipeline.sinks.tables.attempt import open_table
from riverrun.pipeline.sinks.writing import StagedRows, stage_rows
from riverrun.pipeline.topics import run_request
from tests.clusters import Cluster
from tests.processes import until
from tests.spark.drivers import Driver, drive
from tests.spark.pipelines import Runs, write
from tests.spark.read_committed import committed

pytestmark = pytest.mark.timeout(400)

RECORDS = 2400
FILES = 24
LINES = 20


def all_kinds(topic: str, *, rows: int, files: int) -> str:
    return f"""
[pipeline]
name = "faults"
[sources.numbers]
topic = "{topic}"
schema = "id BIGINT"
rows_per_batch = {rows}
[sources.lines]
files = "in"
schema = "id BIGINT"
files_per_batch = {files}
[transforms.copied]
sql = "SELECT id, _partition AS p, _offset AS o FROM numbers"
[sinks.table]
input = "numbers"
path = "table"
trigger = "100 milliseconds"
[sinks.copy]
input = "copied"
topic = "{topic}-copy"
trigger = "100 milliseconds"
[sinks.lines]
input = "lines"
topic = "{topic}-lines"
trigger = "100 milliseconds"
"""


def values_of(bootstrap: str, topic: str) -> list[dict[str, int]]:
    return [json.loads(value) for value in committed(bootstrap, topic)]


def kill_one(driver: Driver, words: str) -> None:
    """An executor, or a Python worker in one."""

    def victim() -> Any:
        found = driver.executors() if words == "executor" else driver.workers()
        return found[0] if found else None

    until(victim, seconds=60, what=f"a {words} runs").send_signal(signal.SIGKILL)


@pytest.fixture
def work_folder() -> Iterator[None]:
    """Remove the log folders that Spark workers leave in Spark's installation."""
    folder = Path(pyspark.__file__).parent / "work"
    before = [*folder.glob("*")]
    yield
    for path in folder.glob("*"):
        if path not in before:
            shutil.rmtree(path, ignore_errors=True)


@pytest.mark.usefixtures("work_folder")
def test_every_record_arrives_once_although_processes_die(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    cluster = spark_cluster
    write(cluster.bootstrap, topic, [{"id": number} for number in range(RECORDS)])
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        ids = range(number * LINES, number * LINES + LINES)
        lines = "".join(json.dumps({"id": each}) + "\n" for each in ids)
        (tmp_path / f"in/{number:03}.json").write_text(lines)
    file = tmp_path / "faults.toml"
    file.write_text(all_kinds(topic, rows=120, files=1))
    victim = cluster.leader(topic)
    words = ["--master", "local-cluster[1,2,1024]", "--bootstrap", cluster.bootstrap]
    try:
        with drive(file, "faults", *words) as driver:
            rows = driver.wait_for_rows({"table": 0, "copy": 0, "lines": 0})
            kill_one(driver, "worker")
            cluster.nodes[victim].kill()
            rows = driver.wait_for_rows(rows)
            kill_one(driver, "executor")
            rows = driver.wait_for_rows(rows)
            driver.kill()
        assert rows["table"] < RECORDS, "the driver died before the end"
        runs = Runs(spark, cluster.bootstrap, tmp_path)
        # The remaining records, in a few batches.
        rest = all_kinds(topic, rows=RECORDS, files=FILES)
        runs.once(rest, file.name)
    finally:
        if not cluster.nodes[victim].is_running():
            cluster.nodes[victim].restart()
    assert sorted(row["id"] for row in runs.rows("table")) == list(range(RECORDS))

    copies = values_of(cluster.bootstrap, f"{topic}-copy")
    assert sorted(row["id"] for row in copies) == list(range(RECORDS))
    lines_ids = [row["id"] for row in values_of(cluster.bootstrap, f"{topic}-lines")]
    assert sorted(lines_ids) == list(range(FILES * LINES))

    cluster.wait_healthy()
    found = run_request(
        cluster.bootstrap, lambda pool: find_replicas(pool, [topic, f"{topic}-copy"])
    )
    outcome = audit_replicas(spark, found, {})
    assert (outcome.copies, outcome.differences) == (18, [])
    assert outcome.compared >= 18


def to_table(topic: str, kind: str, state: str) -> str:
    return f"""
[pipeline]
name = "gaps"
state = "{state}"
[sources.numbers]
topic = "{topic}"
schema = "id BIGINT"
[sinks.out]
format = "{kind}"
path = "table"
"""


def ids_in(kind: str, folder: Path) -> list[int]:
    attempt: Any = open_table(kind, str(folder / "table"), name="out")
    match kind:
        case "delta":
            found = attempt._table.to_pyarrow_table()
        case "iceberg":
            found = attempt._table.scan().to_arrow()
        case _:
            found = pads.dataset(str(folder / "table"), schema=attempt.schema).to_table()
    return sorted(found["id"].to_pylist())


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_crashes_and_stale_drivers_neither_lose_nor_duplicate(
    spark: SparkSession,
    spark_cluster: Cluster,
    tmp_path: Path,
    topic: str,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = Runs(spark, spark_cluster.bootstrap, tmp_path)
    another = Runs(spark.newSession(), spark_cluster.bootstrap, tmp_path)
    commit = StagedRows.commit
    died: list[str] = []

    def commit_and_die(self: StagedRows, *args: Any) -> None:
        commit(self, *args)
        if not died:
            died.append("after the commit")
            raise RuntimeError("died between the commits of table and checkpoint")

    write(runs.bootstrap, topic, [{"id": number} for number in range(20)])
    monkeypatch.setattr(StagedRows, "commit", commit_and_die)
    supervisor = runs.once(to_table(topic, kind, "first"))
    assert died == ["after the commit"]
    assert supervisor.queries[0].status.restarts == 1
    assert "died between" in (supervisor.queries[0].status.reason or "")
    assert supervisor.queries[0].query.counts.skipped == 1
    assert ids_in(kind, tmp_path) == list(range(20))

    def stage_while_another_commits(*args: Any) -> StagedRows:
        staged = stage_rows(*args)
        if len(died) == 1:
            died.append("another driver was faster")
            another.once(to_table(topic, kind, "second"), "second.toml")
        return staged

    write(runs.bootstrap, topic, [{"id": number} for number in range(20, 30)])
    monkeypatch.setattr(batches, "stage_rows", stage_while_another_commits)
    supervisor = runs.once(to_table(topic, kind, "first"))
    assert died[1:] == ["another driver was faster"]
    assert supervisor.queries[0].query.counts.conflicts == 1
    assert ids_in(kind, tmp_path) == list(range(30))


def copy(node: int) -> ReplicaCopy:
    return ReplicaCopy(
        topic="t", topic_id="", partition=0, node=node, host="", port=0, end=9, is_compacted=False
    )


def test_each_difference_between_copies_is_reported(spark: SparkSession) -> None:
    assert "is_compacted" in COPY_DDL
    rows: list[tuple[Any, ...]] = []
    for node in (1, 2, 3):
        rows.append(("batch", "t", 0, node, 0, 4, 1, 111, None, ""))
        rows.append(("batch", "t", 0, node, 5, 6, 2, 222 if node != 2 else 999, None, ""))
        if node != 3:
            rows.append(("batch", "t", 0, node, 7, 8, 2, 333, None, ""))
        rows.append(("copy", "t", 0, node, 0, 9, 0, 0, None, ""))
    found = spark.createDataFrame(rows, FOUND_DDL)
    outcome = compare_copies(found, [copy(node) for node in (1, 2, 3)])
    assert [difference.offset for difference in outcome.differences] == [5, 7]
    assert "node 2 has 5 to 6 of epoch 2, CRC 3E7" in outcome.differences[0].text
    assert "node 3" not in outcome.differences[1].text


def test_unreadable_copy_is_reported_once(spark: SparkSession) -> None:
    rows: list[tuple[Any, ...]] = [
        ("batch", "t", 0, 1, 0, 4, 1, 111, None, ""),
        ("copy", "t", 0, 1, 0, 9, 0, 0, None, ""),
        ("copy", "t", 0, 2, 0, 0, 0, 0, None, "the batch at offset 0 fails its CRC"),
        ("absent", "t", 0, 3, 0, 0, 0, 0, None, "cannot be reached"),
    ]
    outcome = compare_copies(spark.createDataFrame(rows, FOUND_DDL), [copy(1), copy(2), copy(3)])
    assert [(difference.text, difference.is_unread) for difference in outcome.differences] == [
        ("node 2: the batch at offset 0 fails its CRC", False),
        ("node 3: cannot be reached", True),
    ]
    assert (outcome.unread, outcome.compared) == (1, 1)
