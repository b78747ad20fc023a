"""What the tests with Spark share: one session and one cluster of three nodes, started once.

A session takes long to start, so tests use topics and tables of their own instead of sessions of
their own. Spark's connector is on its class path where Maven Central can be reached. `make test`
runs them in two processes, each with its session and its cluster; with `--dist loadgroup` a process
that is done gets the next test. Two keep two cores busy; a third costs more than it gains, for it
starts Spark and three nodes once more, and processes of Java that share a core disturb each other.
"""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_riverrun import session
from tests.clusters import Cluster, serve_three
from tests.peers import MissingPeer, need, outcome
from tests.spark.connector import find_connector
from tests.spark.java import quick_java

NAMES = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several processes none shall begin with the longest test when the others have ended."""
    if not hasattr(config, "workerinput"):
        return  # one after the other, as they stand

    def seconds_max(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return 0.0 if mark is None else float(mark.args[0])

    items.sort(key=seconds_max, reverse=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    jars = outcome(find_connector)
    folder = tempfile.mkdtemp(prefix="riverrun-spark-")
    config = {
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    if not isinstance(jars, MissingPeer):
        config["spark.jars"] = ",".join(str(jar) for jar in jars)
    with quick_java():
        started = session("local[2]", "tests", ui=False, config=config)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Cluster]:
    """Three nodes; whoever kills one brings it back."""
    folder = Path(tempfile.mkdtemp(prefix="riverrun-spark-"))
    with serve_three(folder, {"num.partitions": "3"}) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{os.getpid()}-{next(NAMES)}"


@pytest.fixture
def connector(spark: SparkSession) -> str:
    """The format of Spark's own source."""
    need(find_connector)
    return "kafka"
