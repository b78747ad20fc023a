"""The status of running queries while no node of the cluster responds."""

import time
from pathlib import Path

from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run.cluster_watch import REASON, SILENT_SECONDS_MAX, ClusterWatch
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus
from tests.processes import serve, until
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
            QueryStatus(sink=sink, state="running", lag=0, lags={"a-0": 0}, rows_per_second=5.0)
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
        ("running", None, 0),  # files into a table need no cluster
        ("waiting", REASON, None),
    ]
    watch.record_response(True, 20.0)
    assert watch.adjusted(running(), 20.0) == running()


def test_failed_query_keeps_its_own_reason(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    watch.record_response(False, 0.0)
    status = status_with(queries=[QueryStatus(sink="b", state="failed", reason="delete the table")])
    assert watch.adjusted(status, 100.0) == status


def test_watch_detects_loss_and_return_of_the_cluster(tmp_path: Path) -> None:
    def is_lost() -> bool:
        later = time.monotonic() + SILENT_SECONDS_MAX
        return watch.adjusted(running(), later).queries[0].state == "waiting"

    with serve(tmp_path / "node") as node, watch_at(tmp_path, node.bootstrap) as watch:
        node.kill()
        until(is_lost, seconds=20, what="no node responds")
        node.restart()
        until(lambda: not is_lost(), seconds=20, what="the node responds again")
