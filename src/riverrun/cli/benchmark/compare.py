"""The same load on riverrun and on Apache Kafka, in turn, and one table of ratios.

Rounds alternate between the two, so that a noisy machine is noisy for both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from riverrun.cli.benchmark import floor, load, peers
from riverrun.cli.benchmark.load import Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress

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
LATENCY_RATE = 1000
LATENCY_SECONDS = 8

Measure = Callable[[str, peers.Running, RatioTable], None]
OwnServersPart = Callable[[RatioTable, Sequence[str]], None]
"""A part that starts the named servers itself, because they need other settings."""


def compare(
    *,
    rounds: int,
    measures: Sequence[Measure],
    with_kafka: bool,
    parts: Sequence[OwnServersPart] = (),
) -> RatioTable:
    """Measure both servers ``rounds`` times, alternating."""
    table = RatioTable()
    names = server_names(table, with_kafka=with_kafka)
    floor.touch_memory()
    for chunk in FLOOR_CHUNKS:
        table.floors[chunk] = floor.measure(chunk)
    for number in range(rounds if measures else 0):
        for name in names:
            progress(f"round {number + 1} of {rounds}: {name}")
            with peers.STARTERS[name]() as running:
                for measure in measures:
                    measure(name, running, table)
    for part in parts:
        part(table, names)
    return table


def server_names(table: RatioTable, *, with_kafka: bool) -> tuple[str, ...]:
    """The servers to measure. A note says why Apache Kafka is missing, if it is wanted."""
    if not with_kafka:
        return ("riverrun",)
    try:
        peers.kafka_jars()
    except peers.PeerUnavailable as error:
        table.notes.append(f"Apache Kafka is not available ({error}); riverrun is measured alone.")
        progress(table.notes[-1])
        return ("riverrun",)
    return ("riverrun", "kafka")


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
        progress(f"  {name}: {shape.name()}: {time.monotonic() - began:.1f} s")
    load.create_topic(running.bootstrap, "latency", 1)
    latency = load.end_to_end(
        running.bootstrap, "latency", rate=LATENCY_RATE, seconds=LATENCY_SECONDS
    )
    table.add(name, Row("end to end", f"{LATENCY_RATE} records/s", "p50 ms"), latency.p50_ms)
    table.add(name, Row("end to end", f"{LATENCY_RATE} records/s", "p99 ms"), latency.p99_ms)
    table.add(name, Row("resident, loaded", "", "MB"), servers.resident_megabytes())
