"""Measures a test cluster beside Apache Kafka: `python -m tools.measure_testing`.

Prints the table of docs/testing.md. Both serve the same client (confluent-kafka) on this machine,
in turn, several times. Apache Kafka runs from its jars, as one node, which is formatted first.
"""

import argparse
import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from riverrun.testing import Cluster
from tests.processes import ApacheKafka

ROUNDS = 5
WAIT_SECONDS_MAX = 60.0
TOPIC = "measured"
ROWS = {
    "start": "start, until clients are served",
    "topic": "new topic",
    "record": "write a record and read it",
    "end": "end",
    "processor": "processor time of all processes",
    "memory": "memory of all processes",
}


@dataclass
class Series:
    """The values of one column, by row."""

    name: str
    values: dict[str, list[float]] = field(default_factory=lambda: {row: [] for row in ROWS})

    @contextlib.contextmanager
    def timed(self, row: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.values[row].append(time.monotonic() - began)


def measure(series: Series, start: Callable[[], str], end: Callable[[], None]) -> None:
    """One life of a cluster; ``start`` returns its address."""
    used = processor_seconds()
    try:
        with series.timed("start"):
            bootstrap = start()
        with series.timed("topic"):
            admin = AdminClient({"bootstrap.servers": bootstrap})
            admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(WAIT_SECONDS_MAX)
        with series.timed("record"):
            write_and_read(bootstrap)
        children = psutil.Process().children(recursive=True)
        series.values["memory"].append(sum(one.memory_info().rss for one in children) / 1e6)
    finally:
        with series.timed("end"):
            end()
    series.values["processor"].append(processor_seconds() - used)


def write_and_read(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    producer.produce(TOPIC, "hello")
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "measured"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    message = consumer.poll(WAIT_SECONDS_MAX)
    assert message is not None and message.value() == b"hello", "the record was read"
    consumer.close()


def processor_seconds() -> float:
    """Of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure_riverrun(series: Series, nodes: int) -> None:
    cluster = Cluster(nodes)

    def start() -> str:
        cluster.open()
        return cluster.bootstrap

    measure(series, start, cluster.close)


def measure_kafka(series: Series) -> None:
    with tempfile.TemporaryDirectory(prefix="riverrun-measure-") as folder:
        server = ApacheKafka(Path(folder) / "kafka", {})

        def start() -> str:
            server.start()
            return server.bootstrap

        measure(series, start, server.stop_all)


def table(columns: list[Series]) -> Iterator[str]:
    yield "| | " + " | ".join(series.name for series in columns) + " |"
    yield "|---|" + "---:|" * len(columns)
    for row, title in ROWS.items():
        unit, digits = ("MB", 0) if row == "memory" else ("s", 2)
        cells = []
        for series in columns:
            values = series.values[row]
            low, middle, high = min(values), statistics.median(values), max(values)
            cells.append(f"{middle:.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})")
        yield f"| {title} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    one, three = Series("riverrun, one node"), Series("riverrun, three nodes")
    kafka = Series("Apache Kafka, one node")
    for _ in range(rounds):
        measure_riverrun(one, 1)
        measure_riverrun(three, 3)
        measure_kafka(kafka)
    print(f"Median (lowest to highest) of {rounds} rounds:\n")
    print("\n".join(table([one, kafka, three])))


if __name__ == "__main__":
    main()
