"""Shared fixtures: one Spark session and one cluster of three nodes per process.

A session takes long to start, so tests share it and use their own topics and tables. Spark's Kafka
connector is on its class path if Maven Central is reachable. `make test` runs these tests in two
processes, each with its own session and cluster, and `--dist loadgroup` balances them. Two
processes keep two cores busy; a third would start another Spark and three more nodes.
"""

import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_riverrun import session
from tests.clusters import Cluster, serve_three
from tests.peers import MissingPeer, need, outcome
from tests.spark.connector import find_connector
from tests.spark.java import fast_java

NAMES = itertools.count()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, run the tests with the longest timeouts first."""
    if not hasattr(config, "workerinput"):
        return  # one process keeps the order of the files

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
    with fast_java():
        started = session("local[2]", "tests", ui=False, config=config)
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[Cluster]:
    """Three nodes. A test that kills a node must restart it."""
    folder = Path(tempfile.mkdtemp(prefix="riverrun-spark-"))
    with serve_three(folder, {"num.partitions": "3"}) as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    """A unique topic name."""
    return f"topic-{os.getpid()}-{next(NAMES)}"


@pytest.fixture
def nowhere() -> str:
    """An address without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def connector(spark: SparkSession) -> str:
    """The format name of Spark's connector."""
    need(find_connector)
    return "kafka"
