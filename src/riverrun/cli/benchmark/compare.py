"""The same load on riverrun and on Apache Kafka, in turn, and one table of ratios.

Rounds alternate between the two, so that a noisy machine is noisy for both; each figure is the
median of its rounds. A ratio above 1 means that riverrun is better.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from riverrun.cli.benchmark import floor, load, peers
from riverrun.cli.benchmark.load import Servers, Shape

SHAPES = (
    Shape(record_bytes=100, batch_bytes=16_384, megabytes=30),
    Shape(record_bytes=100, batch_bytes=65_536, megabytes=50),
    Shape(record_bytes=100, batch_bytes=1_000_000, megabytes=50),
    Shape(record_bytes=1000, batch_bytes=16_384, megabytes=150),
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=300),
    Shape(record_bytes=1000, batch_bytes=1_000_000, megabytes=400),
    Shape(record_bytes=10_000, batch_bytes=16_384, megabytes=150),
    Shape(record_bytes=10_000, batch_bytes=65_536, megabytes=300),
    Shape(record_bytes=10_000, batch_bytes=1_000_000, megabytes=400),
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=150, partitions=100),
    Shape(record_bytes=1000, batch_bytes=16_384, megabytes=100, connections=200),
)
WARM_UP = Shape(record_bytes=1000, batch_bytes=65_536, megabytes=300)
FLOOR_CHUNKS = (16_384, 65_536, 1_000_000)
HIGHER_IS_BETTER = ("MB/s", "commits/s")
LATENCY_RATE = 1000
LATENCY_SECONDS = 8


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A measured quantity: activity, load and unit."""

    activity: str
    shape: str
    unit: str


@dataclass(slots=True)
class RatioTable:
    """Figures by row and server."""

    figures: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    floors: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, server: str, row: Row, value: float) -> None:
        self.figures.setdefault(row, {}).setdefault(server, []).append(value)

    def median(self, row: Row, server: str) -> float | None:
        values = self.figures.get(row, {}).get(server)
        return statistics.median(values) if values else None

    def ratio(self, row: Row) -> float | None:
        """riverrun's figure relative to Kafka's; None if one of them is missing."""
        ours, theirs = self.median(row, "riverrun"), self.median(row, "kafka")
        if ours is None or theirs is None:
            return None
        if ours == theirs:  # no errors on either side count as equal
            return 1.0
        if row.unit in HIGHER_IS_BETTER:
            return ours / max(theirs, 1e-9)
        return theirs / max(ours, 1e-9)

    def as_json(self) -> dict[str, object]:
        return {
            "rows": [
                {
                    "activity": row.activity, "shape": row.shape, "unit": row.unit,
                    "riverrun": self.median(row, "riverrun"), "kafka": self.median(row, "kafka"),
                    "ratio": self.ratio(row),
                }
                for row in self.figures
            ],
            "kernel_floor_ms_per_mb": {str(size): value for size, value in self.floors.items()},
            "notes": self.notes,
        }  # fmt: skip

    def as_markdown(self) -> str:
        lines = [
            "| | load | unit | riverrun | Apache Kafka | ratio |",
            "|---|---|---|---:|---:|---:|",
        ]
        for row in self.figures:
            cells = [_number(self.median(row, name)) for name in ("riverrun", "kafka")]
            lines.append(
                f"| {row.activity} | {row.shape} | {row.unit} | {cells[0]} | {cells[1]} "
                f"| {_number(self.ratio(row))} |"
            )
        for size, value in self.floors.items():
            lines.append(f"| kernel floor | chunks of {size} B | CPU ms/MB | {value:.2f} | | |")
        return "\n".join([*lines, "", *self.notes]) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


Starter = Callable[[], AbstractContextManager[peers.Running]]


Measure = Callable[[str, peers.Running, RatioTable], None]


def compare(*, rounds: int, measures: Sequence[Measure], with_kafka: bool) -> RatioTable:
    """Measure both servers ``rounds`` times, alternating."""
    table = RatioTable()
    starters: dict[str, Starter] = {"riverrun": peers.riverrun}
    if with_kafka:
        try:
            peers.kafka_jars()
            starters["kafka"] = peers.kafka
        except peers.PeerUnavailable as error:
            table.notes.append(
                f"Apache Kafka is not available ({error}); riverrun is measured alone."
            )
            _progress(table.notes[-1])
    floor.touch_memory()
    for chunk in FLOOR_CHUNKS:
        table.floors[chunk] = floor.measure(chunk)
    for number in range(rounds):
        for name, start in starters.items():
            _progress(f"round {number + 1} of {rounds}: {name}")
            with start() as running:
                for measure in measures:
                    measure(name, running, table)
    return table


def measure_load(
    name: str, running: peers.Running, table: RatioTable, *, shapes: tuple[Shape, ...]
) -> None:
    servers = Servers(running.pids)
    table.add(name, Row("start to first ack", "", "s"), running.first_ack_seconds)
    table.add(name, Row("resident, idle", "", "MB"), running.idle_megabytes)
    # The first touch of memory and the JVM's compiler are one-time costs and must not count.
    load.create_topic(running.bootstrap, "warm", 1)
    load.produce(running.bootstrap, "warm", WARM_UP, servers)
    load.consume(running.bootstrap, "warm", WARM_UP, servers)
    for shape in shapes:
        topic = (
            f"r{shape.record_bytes}-b{shape.batch_bytes}-p{shape.partitions}-c{shape.connections}"
        )
        load.create_topic(running.bootstrap, topic, shape.partitions)
        began = time.monotonic()
        made = load.produce(running.bootstrap, topic, shape, servers)
        table.add(name, Row("produce", shape.name(), "MB/s"), made.megabytes_per_second)
        table.add(name, Row("produce", shape.name(), "CPU ms/MB"), made.cpu_ms_per_megabyte)
        if shape.connections == 1:
            read = load.consume(running.bootstrap, topic, shape, servers)
            table.add(name, Row("consume", shape.name(), "MB/s"), read.megabytes_per_second)
            table.add(name, Row("consume", shape.name(), "CPU ms/MB"), read.cpu_ms_per_megabyte)
        _progress(f"  {name}: {shape.name()}: {time.monotonic() - began:.1f} s")
    load.create_topic(running.bootstrap, "latency", 1)
    latency = load.end_to_end(
        running.bootstrap, "latency", rate=LATENCY_RATE, seconds=LATENCY_SECONDS
    )
    table.add(name, Row("end to end", f"{LATENCY_RATE} records/s", "p50 ms"), latency.p50_ms)
    table.add(name, Row("end to end", f"{LATENCY_RATE} records/s", "p99 ms"), latency.p99_ms)
    table.add(name, Row("resident, loaded", "", "MB"), servers.resident_megabytes())


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
