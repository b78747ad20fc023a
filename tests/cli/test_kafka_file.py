"""`riverrun start --config` with the sample files of Apache Kafka, in real processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.cli.commands import Cli
from tests.kafka_samples import BROKER, CONTROLLER, SERVER
from tests.processes import executable, free_ports, until

RECORDS = 100


def write(path: Path, sample: str, port: int, data: Path) -> Path:
    """The sample with other ports and another directory; all else is unchanged."""
    lines = [
        f"log.dirs={data}" if line.startswith("log.dirs=") else line
        for line in sample.replace(":9092", f":{port}").replace(":9093", f":{port + 1}").split("\n")
    ]
    path.write_text("\n".join(lines))
    return path


@contextlib.contextmanager
def started(config: Path) -> Iterator[Path]:
    """A node that runs; yields the file of its log."""
    log = config.with_suffix(".log")
    environment = {n: t for n, t in os.environ.items() if n != "RIVERRUN_HTTP_LISTENER"}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [executable(), "start", "--config", str(config)],
            stdout=written,
            stderr=written,
            env=environment,
        )
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def is_up(log: Path) -> bool:
    text = log.read_text()
    assert "riverrun: " not in text, text
    return "node is up" in text


def write_and_read(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 30_000})
    for number in range(RECORDS):
        producer.produce("orders", str(number).encode())
    assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(RECORDS, 1.0):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
        return len(found) >= RECORDS

    until(is_read, seconds=60, what="all records")
    consumer.close()
    assert found == list(range(RECORDS))


def test_combined_node_serves_clients(tmp_path: Path) -> None:
    port = free_ports(3)
    config = write(tmp_path / "server.properties", SERVER, port, tmp_path / "data")
    with started(config) as log:
        until(lambda: is_up(log), seconds=60, what="the node is up")
        [line] = [one for one in log.read_text().splitlines() if "ignored settings" in one]
        assert "num.network.threads, num.io.threads, share.coordinator" in line
        write_and_read(f"localhost:{port}")
        cli = Cli(f"localhost:{port}")
        checked = cli.result("doctor", "--config", str(config)).output
        assert "settings of Apache Kafka that have no effect: num.network.threads" in checked
    done = subprocess.run(
        [executable(), "stop", "--config", str(config)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert str(tmp_path / "data") in done.stderr


def test_controller_and_broker_form_a_cluster(tmp_path: Path) -> None:
    port = free_ports(4)
    controller = write(tmp_path / "controller.properties", CONTROLLER, port, tmp_path / "1")
    broker = write(tmp_path / "broker.properties", BROKER, port, tmp_path / "2")
    with started(controller) as controller_log, started(broker) as broker_log:
        until(lambda: is_up(controller_log), seconds=60, what="the controller is up")
        until(lambda: is_up(broker_log), seconds=60, what="the broker is up")
        write_and_read(f"localhost:{port}")


def test_file_for_zookeeper_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text("broker.id=0\nzookeeper.connect=localhost:2181\n")
    done = subprocess.run(
        [executable(), "start", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no ZooKeeper" in done.stderr
