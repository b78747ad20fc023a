"""Kafka Connect with exactly-once source connectors while its worker and a node are killed."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.clusters import Cluster
from tests.compatibility.cluster.applications import Application
from tests.compatibility.confluent import consumer, value_of
from tests.compatibility.conftest import MakeTopic
from tests.processes import free_ports, until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]
FILES = "org.apache.kafka.connect.file."
WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
PROGRESS_SECONDS_MAX = 90
REQUEST_SECONDS_MAX = 10
# The source writes a transaction for each of its polls.
ROWS_PER_TRANSACTION = 20
ROWS = 2000
# The source keeps the rows of its buffer of 1024 characters until the file grows.
HELD_BACK_MAX = 200


class Worker:
    """One worker of Kafka Connect, and its REST interface."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self._url = f"http://127.0.0.1:{free_ports(1)}"
        text = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": name,
            "listeners": self._url,
            "exactly.once.source.support": "enabled",
            "key.converter": text,
            "value.converter": text,
            "config.storage.topic": f"{name}-configs",
            "offset.storage.topic": f"{name}-offsets",
            "offset.storage.partitions": 3,
            "status.storage.topic": f"{name}-status",
            "status.storage.partitions": 1,
            "offset.flush.interval.ms": 500,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "scheduled.rebalance.max.delay.ms": 0,
            "plugin.discovery": "service_load",
            "consumer.isolation.level": "read_committed",
            "consumer.session.timeout.ms": 6000,
            "consumer.heartbeat.interval.ms": 1000,
            # A worker waits at its start until the transactions of a killed one have timed out.
            "producer.transaction.timeout.ms": 3000,
        }
        path = folder / "worker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.process = Application(folder / "worker.log", WORKER, path)

    def run(self, connector: str, kind: str, **settings: object) -> None:
        """Create a connector, and wait until its task is running."""
        named = {key.replace("_", "."): str(value) for key, value in settings.items()}
        fields = {"connector.class": f"{FILES}{kind}Connector", "tasks.max": "1", **named}
        path = f"/connectors/{connector}/config"
        self.wait(lambda: self._request(path, fields), f"{connector} is created")
        self.wait_running(connector)

    def wait_running(self, connector: str) -> None:
        self.wait(lambda: self._is_running(connector), f"{connector} is running")

    def _is_running(self, connector: str) -> bool:
        status = self._request(f"/connectors/{connector}/status")
        states = [task["state"] for task in status["tasks"]] if status else []
        assert "FAILED" not in states, status
        return states == ["RUNNING"]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Wait while the worker runs; its log is part of a failure."""

        def holds() -> object:
            self.process.check()
            return condition()

        try:
            until(holds, seconds=PROGRESS_SECONDS_MAX, what=what)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.process.log()}") from error

    def _request(self, path: str, fields: dict[str, str] | None = None) -> Any:
        """The response, or None while the worker starts or rebalances."""
        data = None if fields is None else json.dumps(fields).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}
        )
        request.method = "GET" if data is None else "PUT"
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS_MAX) as response:
                return json.load(response)
        except URLError:
            return None


class Table:
    """Numbered rows of a file that grows, and the committed rows that were read from the topic."""

    def __init__(self, path: Path, output: Consumer, worker: Worker) -> None:
        self._path = path
        self._output = output
        self._worker = worker
        self.written: list[str] = []
        self.read: list[str] = []
        path.touch()

    def write(self, count: int) -> None:
        start = len(self.written)
        rows = [f"row-{number}" for number in range(start, start + count)]
        with self._path.open("a") as file:
            file.writelines(f"{row}\n" for row in rows)
        self.written += rows

    def wait_for(self, count: int) -> None:
        """Read until the topic has given ``count`` rows."""

        def is_done() -> bool:
            for message in self._output.consume(1000, 0.1):
                assert message.error() is None, message.error()
                self.read.append(value_of(message).decode())
            return len(self.read) >= count

        self._worker.wait(is_done, f"{count} rows arrive")
        assert self.read == self.written[: len(self.read)]


@contextmanager
def _committed(cluster: Cluster, topic: str) -> Iterator[Consumer]:
    settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
    with consumer(cluster.bootstrap, f"{topic}-check", **settings) as output:
        output.assign([TopicPartition(topic, 0, 0)])
        yield output


def test_connect_delivers_rows_exactly_once_through_kills(
    cluster: Cluster, make_topic: MakeTopic, make_name: Callable[[], str], tmp_path: Path
) -> None:
    """The rows of a file arrive in a topic once, and a sink reads all of them."""
    topic = make_topic()
    name = make_name()
    worker = Worker(cluster, name, tmp_path)
    copied = tmp_path / "copied"
    with _committed(cluster, topic) as output, worker.process:
        table = Table(tmp_path / "rows", output, worker)
        source = {"file": tmp_path / "rows", "topic": topic, "batch_size": ROWS_PER_TRANSACTION}
        worker.run("source", "FileStreamSource", exactly_once_support="required", **source)
        worker.run("sink", "FileStreamSink", file=copied, topics=topic)
        table.write(ROWS)
        table.wait_for(ROWS // 4)
        worker.process.kill()
        worker.process.start()
        table.wait_for(ROWS - HELD_BACK_MAX)
        table.write(ROWS)
        table.wait_for(ROWS + ROWS // 4)
        leader = cluster.nodes[cluster.leader(topic)]
        leader.kill()
        table.wait_for(2 * ROWS - HELD_BACK_MAX)
        leader.restart()
        table.write(HELD_BACK_MAX)
        table.wait_for(2 * ROWS)
        for connector in ("source", "sink"):
            worker.wait_running(connector)
        worker.wait(
            lambda: table.written[2 * ROWS - 1] in copied.read_text().splitlines(),
            "the sink has the rows",
        )
    # A kill repeats rows whose offsets were not committed, and may tear the last line.
    text = copied.read_text()
    assert not [row for row in table.written[: 2 * ROWS] if f"{row}\n" not in text]
    cluster.wait_healthy()
