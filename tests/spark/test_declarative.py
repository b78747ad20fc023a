"""Spark Declarative Pipelines with our source and sink: the example runs twice."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as pads
import pytest

from tests.processes import serve
from tests.spark.java import java_environment
from tests.spark.pipelines import read

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_SECONDS_MAX = 180
FOLDER = "/tmp/riverrun-declarative"

pytestmark = pytest.mark.timeout(400)


def produce(bootstrap: str, first: int, count: int) -> None:
    words = ["clicks", "--bootstrap", bootstrap, "--count", str(count), "--first", str(first)]
    subprocess.run([sys.executable, str(EXAMPLES / "events.py"), *words], check=True)


def run(folder: Path, bootstrap: str) -> None:
    command = str(Path(sys.executable).with_name("spark-pipelines"))
    environment = {
        "RIVERRUN_BOOTSTRAP": bootstrap,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Makes PySpark choose a free port.
        "SPARK_TESTING": "yes",
        **java_environment(),
    }
    log = folder / "run.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                command,
                "run",
                "--spec",
                str(folder / "spark-pipeline.yml"),
                "--conf",
                "spark.sql.catalogImplementation=hive",
                "--conf",
                "spark.ui.enabled=false",
            ],
            env={**os.environ, **environment},
            cwd=folder,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        code = process.wait(RUN_SECONDS_MAX)
    finally:
        # The processes of a hanging run would hold its port.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, log.read_text()[-6000:]


def test_declarative_example_continues_in_a_second_run(tmp_path: Path) -> None:
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLES / "declarative", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(FOLDER, str(tmp_path)))
    with serve(tmp_path / "node", {"num.partitions": "3"}) as node:
        bought = []
        for first, count in ((0, 200), (200, 100)):
            produce(node.bootstrap, first, count)
            run(folder, node.bootstrap)
            rows = pads.dataset(folder / "spark-warehouse/clicks").to_table().to_pylist()
            assert sorted(row["id"] for row in rows) == list(range(first + count))
            bought = sorted(row["id"] for row in rows if row["action"] == "buy")
        records = read(node.bootstrap, "purchases")
        assert sorted(json.loads(record.value or b"")["id"] for record in records) == bought
        assert all((record.key or b"").startswith(b"user-") for record in records)
        counts = pads.dataset(folder / "spark-warehouse/purchases_by_page").to_table().to_pylist()
        assert sum(row["count"] for row in counts) == len(bought)
