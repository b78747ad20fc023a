"""The lag of queries, and their status while no node of the cluster responds."""

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pyspark_riverrun.options import write_options
from pyspark_riverrun.writing.task import TaskSlot, write_in_transaction
from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run.cluster_watch import (
    ENDS_SECONDS_MAX,
    REASON,
    SILENT_SECONDS_MAX,
    ClusterWatch,
    lag_without_run,
)
from riverrun.pipeline.run.display import status_tables
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus
from riverrun.pipeline.topics import create_topic
from tests.processes import serve, until
from tests.spark.pipelines import write
from tests.spark.test_pipeline_command import status_with

FILE = """
[sources.a]
topic = "a"
[sources.f]
files = "in"
format = "csv"
schema = "id INT"
[sinks.b]
input = "a"
[sinks.g]
input = "f"
[sinks.t]
input = "f"
topic = "t"
"""


def watch_at(folder: Path, bootstrap: str) -> ClusterWatch:
    file = folder / "p.toml"
    file.write_text(FILE)
    return ClusterWatch(read_pipeline(file, bootstrap=bootstrap))


def running() -> PipelineStatus:
    return status_with(
        queries=[
            QueryStatus(sink=sink, state="running", positions={"a-0": 10}, rows_per_second=5.0)
            for sink in ("b", "g", "t")
        ]
    )


def test_running_query_is_shown_as_waiting_while_no_node_responds(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    watch.record_response(False, 10.0)
    assert watch.adjusted(running(), 10.0 + SILENT_SECONDS_MAX / 2) == running(), (
        "a leader election"
    )
    watch.record_response(False, 11.0)
    shown = watch.adjusted(running(), 10.0 + SILENT_SECONDS_MAX).queries
    assert [(query.state, query.reason, query.lag) for query in shown] == [
        ("waiting", REASON, None),
        ("running", None, None),  # files into a table need no cluster
        ("waiting", REASON, None),
    ]
    watch.record_response(True, 20.0)
    assert watch.adjusted(running(), 20.0) == running()


def test_failed_query_keeps_its_own_reason(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    watch.record_response(False, 0.0)
    status = status_with(queries=[QueryStatus(sink="b", state="failed", reason="delete the table")])
    assert watch.adjusted(status, 100.0) == status


def test_lag_is_the_distance_to_the_current_end_of_the_log(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    before = watch.adjusted(running(), 10.0).queries
    assert [query.lag for query in before] == [None, None, None], "not known yet"
    watch.record_ends({"a-0": 15, "a-1": 3, "other-0": 99}, 10.0)
    first, files, to_topic = watch.adjusted(running(), 11.0).queries
    assert (first.lag, first.lags) == (8, {"a-0": 5, "a-1": 3}), "a new partition is unread"
    assert (files.lag, to_topic.lag) == (None, None), "files have no lag"
    late = watch.adjusted(running(), 10.0 + ENDS_SECONDS_MAX).queries
    assert late[0].lag is None, "no old number"
    starting = status_with(queries=[QueryStatus(sink="b")])
    assert watch.adjusted(starting, 11.0).queries[0].lag is None, "the position is not known yet"


def test_lag_grows_during_a_batch(tmp_path: Path) -> None:
    """The cluster is asked, not Spark, which knows the ends of the logs at its last planning."""
    with serve(tmp_path / "node") as node:
        write(node.bootstrap, "a", [{"id": number} for number in range(12)])
        status = status_with(queries=[QueryStatus(sink="b", state="running", positions={"a-0": 7})])
        with watch_at(tmp_path, node.bootstrap) as watch:

            def lag() -> int | None:
                return watch.adjusted(status).queries[0].lag

            until(lambda: lag() == 5, seconds=20, what="the lag is known")
            write(node.bootstrap, "a", [{"id": 12}])
            until(lambda: lag() == 6, seconds=20, what="the lag has grown")
        pipeline = read_pipeline(tmp_path / "p.toml")
        (dead,) = lag_without_run(pipeline, replace(status, bootstrap=node.bootstrap)).queries
        assert (dead.state, dead.lag) == ("dead", 6)


def test_status_shows_the_transactions_that_a_dead_run_left_open(tmp_path: Path) -> None:
    text = '[sources.a]\ntopic = "a"\nvalues = "raw"\n[sinks.b]\ninput = "a"\ntopic = "b"\n'
    (tmp_path / "q.toml").write_text(text)
    with serve(tmp_path / "node") as node:
        create_topic(node.bootstrap, "b")
        pipeline = read_pipeline(tmp_path / "q.toml", bootstrap=node.bootstrap)
        options = write_options(
            {
                "kafka.bootstrap.servers": node.bootstrap,
                "topic": "b",
                "kafka.delivery": "exactly-once",
            }
        )
        value = pa.RecordBatch.from_pydict({"value": pa.array([b"x"])})
        application = f"{pipeline.progress_id(pipeline.sinks['b'])}/the-id-of-the-topic"
        slot = TaskSlot(application=application, job="0")
        write_in_transaction(options, iter([value]), slot)
        status = status_with(queries=[QueryStatus(sink="b", state="running")])
        found = lag_without_run(pipeline, status)
    assert found.queries[0].open_transactions == 1
    (shown,) = [
        each for each in status_tables(found, is_running=False) if each.kind == "transactions"
    ]
    assert shown.rows == [["b", 1]]


def test_watch_detects_loss_and_return_of_the_cluster(tmp_path: Path) -> None:
    def is_lost() -> bool:
        later = time.monotonic() + SILENT_SECONDS_MAX
        return watch.adjusted(running(), later).queries[0].state == "waiting"

    with serve(tmp_path / "node") as node, watch_at(tmp_path, node.bootstrap) as watch:
        node.kill()
        until(is_lost, seconds=20, what="no node responds")
        node.restart()
        until(lambda: not is_lost(), seconds=20, what="the node responds again")
