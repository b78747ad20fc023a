"""The commands of docs/pipelines.md run in order and print what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.pages import MARK, examples
from tests.processes import serve
from tests.spark.java import java_environment
from tests.spark.pipelines import read, write
from tests.spark.read_committed import committed

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"

pytestmark = pytest.mark.timeout(600)


def test_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    shown = examples("pipelines.md")
    assert len(shown) > 8
    script = f"\necho '{MARK}'\n".join(command for command, _ in shown)
    with serve(tmp_path / "node") as node:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            timeout=560,
            check=False,
            env={
                **os.environ,
                **java_environment(),
                "PATH": path,
                "LC_ALL": "C",
                "RIVERRUN_BOOTSTRAP": node.bootstrap,
            },
            capture_output=True,
            text=True,
        )
    outputs = done.stdout.split(f"{MARK}\n")
    for (command, output), printed in zip(shown, outputs, strict=False):
        assert printed == output, (command, done.stderr)
    assert len(outputs) == len(shown)


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_programs_of_the_page_run(
    spark: SparkSession, spark_cluster: Cluster, tmp_path: Path
) -> None:
    """All except two: a session on another machine, and Declarative Pipelines, whose example has
    its own test.
    """
    reading, copying, lag, *others = programs()
    assert spark.sparkContext is not None, "session() returns the running one"
    write(spark_cluster.bootstrap, "orders", [{"id": 1}, {"id": 2}], keys=["1", "2"])
    for text in (reading, copying, lag):
        here = text.replace("127.0.0.1:9092", spark_cluster.bootstrap)
        for name in ('"path", "', '"checkpointLocation", "'):
            here = here.replace(name, f"{name}{tmp_path}/")
        exec(here, {"spark": spark})
    assert spark.read.parquet(str(tmp_path / "orders")).count() >= 2
    assert len(read(spark_cluster.bootstrap, "numbers")) == 1000
    assert len(committed(spark_cluster.bootstrap, "orders-copy")) >= 2
    for text in others:
        compile(text, str(PAGE), "exec")
    assert len(others) == 2
