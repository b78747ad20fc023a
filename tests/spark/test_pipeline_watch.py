"""What is told of running queries while no node of the cluster answers."""

import time
from pathlib import Path

from riverrun.pipeline.declaration.parser import read_pipeline
from riverrun.pipeline.run.cluster_watch import REASON, SILENT_SECONDS_MAX, Watch
from riverrun.pipeline.run.status import PipelineStatus, QueryStatus
from tests.processes import serve, until
from tests.spark.test_pipeline_command import told

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


def watch_at(folder: Path, bootstrap: str) -> Watch:
    file = folder / "p.toml"
    file.write_text(FILE)
    return Watch(read_pipeline(file, bootstrap=bootstrap))


def running() -> PipelineStatus:
    return told(
        queries=[
            QueryStatus(sink=sink, state="running", lag=0, lags={"a-0": 0}, rows_per_second=5.0)
            for sink in ("b", "g", "t")
        ]
    )


def test_a_running_query_waits_while_no_node_answers(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    watch.heard(False, 10.0)
    assert watch.corrected(running(), 10.0 + SILENT_SECONDS_MAX / 2) == running(), "a new leader"
    watch.heard(False, 11.0)
    shown = watch.corrected(running(), 10.0 + SILENT_SECONDS_MAX).queries
    assert [(query.state, query.reason, query.lag) for query in shown] == [
        ("waiting", REASON, None),
        ("running", None, 0),  # files into a table need no cluster
        ("waiting", REASON, None),
    ]
    watch.heard(True, 20.0)
    assert watch.corrected(running(), 20.0) == running()


def test_a_query_that_failed_keeps_its_own_reason(tmp_path: Path) -> None:
    watch = watch_at(tmp_path, "127.0.0.1:1")
    watch.heard(False, 0.0)
    status = told(queries=[QueryStatus(sink="b", state="failed", reason="delete the table")])
    assert watch.corrected(status, 100.0) == status


def test_a_cluster_is_heard_when_it_comes_and_missed_when_it_goes(tmp_path: Path) -> None:
    def is_missed() -> bool:
        later = time.monotonic() + SILENT_SECONDS_MAX
        return watch.corrected(running(), later).queries[0].state == "waiting"

    with serve(tmp_path / "node") as node, watch_at(tmp_path, node.bootstrap) as watch:
        node.kill()
        until(is_missed, seconds=20, what="nobody answers")
        node.restart()
        until(lambda: not is_missed(), seconds=20, what="the node answers again")
