"""Throughput and server CPU of a cluster with TLS."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from riverrun.cli.benchmark import load
from riverrun.cli.benchmark.clusters import Nodes
from riverrun.cli.benchmark.load import Servers, Shape
from riverrun.cli.benchmark.ratio_table import RatioTable, Row, progress

WARM_UP = Shape(record_bytes=1000, batch_bytes=65_536, megabytes=100)


def measure_tls(
    name: str, nodes: Nodes, table: RatioTable, shapes: Sequence[Shape], warm_up: Shape = WARM_UP
) -> None:
    """Write and read with each shape. All nodes have a replica."""
    servers, replicas = Servers(nodes.pids), len(nodes.members)
    # The first touch of memory and the JVM's compiler are one-time costs and must not count.
    load.create_topic(nodes.bootstrap, "warm", 1, replicas)
    load.produce(nodes.bootstrap, "warm", replace(warm_up, acks=shapes[0].acks), servers)
    load.consume(nodes.bootstrap, "warm", warm_up, servers)
    for shape in shapes:
        began = time.monotonic()
        topic = f"r{shape.record_bytes}-b{shape.batch_bytes}-a{shape.acks}"
        load.create_topic(nodes.bootstrap, topic, 1, replicas)
        made = load.produce(nodes.bootstrap, topic, shape, servers)
        read = load.consume(nodes.bootstrap, topic, shape, servers)
        written = f"{shape.name()}, acks={shape.acks}, TLS"
        for activity, words, found in (
            ("produce", written, made),
            ("consume", f"{shape.name()}, TLS", read),
        ):
            table.add(name, Row(activity, words, "MB/s"), found.megabytes_per_second)
            table.add(name, Row(activity, words, "CPU ms/MB"), found.cpu_ms_per_megabyte)
        progress(
            f"  {name}: {written}: produce {made.megabytes_per_second:.1f} MB/s, "
            f"{made.cpu_ms_per_megabyte:.1f} CPU ms/MB; consume {read.megabytes_per_second:.1f}, "
            f"{read.cpu_ms_per_megabyte:.1f} ({time.monotonic() - began:.1f} s)"
        )
