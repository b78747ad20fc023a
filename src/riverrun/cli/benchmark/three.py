"""Three nodes of riverrun and of Apache Kafka under the same load, and one table of ratios.

Three replicas, min.insync.replicas=2; acks=all and acks=1; and fsync before ack against Kafka's
``flush.messages=1``. The nodes of the part ``security`` use TLS for clients and for each other.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace

from riverrun.cli.benchmark import clusters, failover, floor, load
from riverrun.cli.benchmark.compare import server_names
from riverrun.cli.benchmark.load import Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress
from riverrun.cli.benchmark.security import tls_clusters
from riverrun.cli.benchmark.security.tls_load import measure_tls
from riverrun.cli.benchmark.transactions import TransactionBench

SHAPES = (
    Shape(record_bytes=1000, batch_bytes=16_384, megabytes=60),
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=120),
    Shape(record_bytes=1000, batch_bytes=1_000_000, megabytes=200),
    Shape(record_bytes=100, batch_bytes=65_536, megabytes=30),
)
WIDE = (
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=60, partitions=100, acks="all"),
    Shape(record_bytes=1000, batch_bytes=65_536, megabytes=60, partitions=1000, acks="all"),
)
SYNCED = Shape(record_bytes=1000, batch_bytes=65_536, megabytes=30, acks="all")
SYNCED_CONFIG = {
    "riverrun": {"flush.before.ack": "true"},
    "kafka": {"flush.messages": "1"},
}
WARM_UP = Shape(record_bytes=1000, batch_bytes=65_536, megabytes=100, acks="all")
TLS_SHAPES = tuple(replace(shape, acks="all") for shape in SHAPES[:3])
COUNT = 3
LATENCY_RATE = 1000
LATENCY_SECONDS = 8
LAG_SECONDS = 6
LAG_RUNS = 5
LAG_RECORD_BYTES = 10_000
LAG_RATE_MAX = 5_000
"""Records per second that one Python client can send, read and time."""
FAILOVERS = 5

PARTS = ("load", "failures", "transactions", "security")
"""Each on its own cluster: a node that starts with a thousand logs would measure something else."""


def compare(
    *, rounds: int, quick: bool, with_kafka: bool, parts: tuple[str, ...] = PARTS
) -> RatioTable:
    """Measure both clusters ``rounds`` times, alternating."""
    table = RatioTable()
    names = server_names(table, with_kafka=with_kafka)
    floor.touch_memory()
    for number in range(rounds):
        for part in parts:
            for name in names:
                progress(f"three nodes, {part}, round {number + 1} of {rounds}: {name}")
                starters = tls_clusters.STARTERS if part == "security" else clusters.STARTERS
                with starters[name](COUNT) as nodes:
                    if part == "load":
                        _load(name, nodes, table, quick=quick)
                    elif part == "transactions":
                        bench = TransactionBench(name, nodes.bootstrap, table, replicas=COUNT)
                        bench.run(Servers(nodes.pids), is_quick=quick)
                    elif part == "security":
                        measure_tls(name, nodes, table, TLS_SHAPES[1:2] if quick else TLS_SHAPES)
                    else:
                        _failures(name, nodes, table, rounds=2 if quick else FAILOVERS)
    return table


def _load(name: str, nodes: clusters.Nodes, table: RatioTable, *, quick: bool) -> None:
    servers = Servers(nodes.pids)
    table.add(name, Row("3 nodes ready", "", "s"), nodes.ready_seconds)
    table.add(name, Row("3 nodes resident, idle", "", "MB"), servers.resident_megabytes())
    load.create_topic(nodes.bootstrap, "warm", 1, COUNT)
    load.produce(nodes.bootstrap, "warm", WARM_UP, servers)
    capacity = 0.0
    for acks in ("all", "1"):
        for shape in SHAPES[1:3] if quick else SHAPES:
            speed = _throughput(name, nodes, table, replace(shape, acks=acks), servers)
            if acks == "1" and shape.record_bytes == 1000:
                capacity = max(capacity, speed)
    _latencies(name, nodes, table, capacity)
    config = SYNCED_CONFIG[name]
    _throughput(name, nodes, table, SYNCED, servers, label=", fsync before ack", config=config)
    # Last, because the disk is busy with a thousand logs for a while.
    for shape in WIDE[:1] if quick else WIDE:
        _throughput(name, nodes, table, shape, servers)
    table.add(name, Row("3 nodes resident, loaded", "", "MB"), servers.resident_megabytes())


def _throughput(
    name: str, nodes: clusters.Nodes, table: RatioTable, shape: Shape, servers: Servers, *,
    label: str = "", config: dict[str, str] | None = None,
) -> float:  # fmt: skip
    words = f"{shape.name()}, acks={shape.acks}{label}"
    topic = f"r{shape.record_bytes}-b{shape.batch_bytes}-p{shape.partitions}-a{shape.acks}"
    topic += "-synced" if config else ""
    began = time.monotonic()
    load.create_topic(nodes.bootstrap, topic, shape.partitions, COUNT, config)
    made = load.produce(nodes.bootstrap, topic, shape, servers)
    table.add(name, Row("produce", words, "MB/s"), made.megabytes_per_second)
    table.add(name, Row("produce", words, "CPU ms/MB"), made.cpu_ms_per_megabyte)
    if shape.acks == "all" and config is None and shape.partitions == 1:
        read = load.consume(nodes.bootstrap, topic, shape, servers)
        table.add(name, Row("consume", shape.name(), "MB/s"), read.megabytes_per_second)
        table.add(name, Row("consume", shape.name(), "CPU ms/MB"), read.cpu_ms_per_megabyte)
    progress(
        f"  {name}: {words}: {made.megabytes_per_second:.1f} MB/s, "
        f"{made.cpu_ms_per_megabyte:.1f} CPU ms/MB ({time.monotonic() - began:.1f} s)"
    )
    return made.megabytes_per_second


def _latencies(name: str, nodes: clusters.Nodes, table: RatioTable, capacity: float) -> None:
    os.sync()  # otherwise the disk is still busy with earlier rows
    for acks in ("1", "all"):
        topic = f"latency-{acks}"
        load.create_topic(nodes.bootstrap, topic, 1, COUNT)
        found = load.acknowledged(
            nodes.bootstrap, topic, rate=LATENCY_RATE, seconds=LATENCY_SECONDS, acks=acks
        )
        words = f"{LATENCY_RATE} records/s, acks={acks}"
        table.add(name, Row("acknowledged after", words, "p50 ms"), found.p50_ms)
        table.add(name, Row("acknowledged after", words, "p99 ms"), found.p99_ms)
    found = load.end_to_end(
        nodes.bootstrap, "latency-all", rate=LATENCY_RATE, seconds=LATENCY_SECONDS, acks="all"
    )
    words = f"{LATENCY_RATE} records/s, acks=all"
    table.add(name, Row("end to end", words, "p50 ms"), found.p50_ms)
    table.add(name, Row("end to end", words, "p99 ms"), found.p99_ms)
    rate = min(int(capacity * load.MB / LAG_RECORD_BYTES / 2), LAG_RATE_MAX)
    lags = []
    for number in range(LAG_RUNS):
        topic = f"lag-{number}"
        load.create_topic(nodes.bootstrap, topic, 1, COUNT)
        os.sync()
        lags.append(
            failover.replication_lag(
                nodes.bootstrap, topic,
                rate=rate, seconds=LAG_SECONDS, record_bytes=LAG_RECORD_BYTES,
            )
        )  # fmt: skip
    # Each server at half its own capacity; one pause of the disk affects many records.
    p50, p99 = (
        statistics.median(each)
        for each in zip(*((lag.p50_ms, lag.p99_ms) for lag in lags), strict=True)
    )
    table.add(name, Row("replication lag", "at half of the capacity", "p99 ms"), p99)
    words = f"{rate * LAG_RECORD_BYTES / load.MB:.0f} MB/s, half of its capacity"
    table.notes.append(
        f"{name}: the replication lag was measured at {words}; median of {LAG_RUNS} runs."
    )
    shown = ", ".join(f"{lag.p99_ms:.1f}" for lag in lags)
    progress(f"  {name}: lag p50 {p50:.1f} p99 {p99:.1f} ms ({shown}) at {rate} records/s")


def _failures(name: str, nodes: clusters.Nodes, table: RatioTable, *, rounds: int) -> None:
    load.create_topic(nodes.bootstrap, "failover", 1, COUNT)
    found = sorted(failover.failovers(nodes, "failover", rounds))
    table.add(name, Row("failover", "kill -9 of the leader, median", "s"), statistics.median(found))
    table.add(name, Row("failover", "kill -9 of the leader, worst", "s"), found[-1])
    failed, silence = failover.rolling_restart(nodes, "failover")
    table.add(name, Row("rolling restart", "records that failed", "errors"), failed)
    table.add(name, Row("rolling restart", "longest pause", "s"), silence)
    shown = ", ".join(f"{seconds:.2f}" for seconds in found)
    progress(f"  {name}: failovers {shown} s; rolling restart {failed} errors, {silence:.2f} s")
