"""``riverrun bench``: load on any Kafka-protocol cluster, and the comparison with Apache Kafka."""

from __future__ import annotations

import json
import statistics
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    UNREACHABLE,
    USAGE,
    fail,
)

if TYPE_CHECKING:
    from riverrun.cli.benchmark.compare import Measure, OwnServersPart
    from riverrun.cli.benchmark.load import Servers, Shape, Throughput
    from riverrun.cli.benchmark.peers import Running
    from riverrun.cli.benchmark.ratio_table import RatioTable

BOOTSTRAP = typer.Option(
    BOOTSTRAP_DEFAULT,
    "--bootstrap",
    "--bootstrap-server",
    "-b",
    envvar=BOOTSTRAP_VARIABLE,
    help="Address of the cluster.",
)
TOPIC = typer.Option("bench", "--topic", help="Topic to use; it is created when missing.")
RECORD = typer.Option(1000, "--record-bytes", min=1, help="Size of a record's value.")
BATCH = typer.Option(65_536, "--batch-bytes", min=1, help="The producer's batch.size.")
MEGABYTES = typer.Option(300, "--megabytes", min=1, help="How much in each round.")
PARTITIONS = typer.Option(1, "--partitions", min=1, help="Partitions of the topic.")
ACKS = typer.Option("1", "--acks", help="0, 1 or all.")
ROUNDS = typer.Option(3, "--rounds", min=1, help="Rounds after a warm-up round; the median counts.")
PIDS = typer.Option(
    [],
    "--server-pid",
    help="Process of a server on this machine, to count its CPU; may be repeated.",
)
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    bench = CommandApp(help="Measure a cluster. Needs an extra: pip install 'riverrun[bench]'.")
    bench.command("produce")(produce)
    bench.command("consume")(consume)
    bench.command("end-to-end")(end_to_end)
    bench.command("compare")(compare)
    bench.command("quorum")(quorum)
    bench.command("scale")(scale)
    app.add_typer(bench, name="bench")


def _check_extra() -> None:
    try:
        import confluent_kafka  # noqa: F401
        import psutil  # noqa: F401
    except ImportError as error:
        fail(f"{error.name} is missing: pip install 'riverrun[bench]'", USAGE)


def produce(
    bootstrap: str = BOOTSTRAP,
    topic: str = TOPIC,
    record_bytes: int = RECORD,
    batch_bytes: int = BATCH,
    megabytes: int = MEGABYTES,
    partitions: int = PARTITIONS,
    connections: int = typer.Option(
        1, "--connections", min=1, help="Producers, each with its own connection."
    ),
    acks: str = ACKS,
    rounds: int = ROUNDS,
    server_pid: list[int] = PIDS,
    as_json: bool = AS_JSON,
) -> None:
    """Write as fast as the cluster accepts.

    \b
    riverrun bench produce
    riverrun bench produce --record-bytes 100 --megabytes 50 --acks all --json
    """
    _check_extra()
    from riverrun.cli.benchmark import load

    shape = load.Shape(
        record_bytes=record_bytes, batch_bytes=batch_bytes, megabytes=megabytes,
        partitions=partitions, connections=connections, acks=acks,
    )  # fmt: skip
    _prepare(bootstrap, topic, partitions)
    servers = _servers(server_pid)
    measured = [load.produce(bootstrap, topic, shape, servers) for _ in range(rounds + 1)][1:]
    _show("produce", shape, measured, as_json=as_json, has_cpu=bool(server_pid))


def consume(
    bootstrap: str = BOOTSTRAP,
    topic: str = TOPIC,
    megabytes: int = MEGABYTES,
    partitions: int = PARTITIONS,
    rounds: int = ROUNDS,
    server_pid: list[int] = PIDS,
    as_json: bool = AS_JSON,
) -> None:
    """Read a topic from its start; `bench produce` fills it.

    \b
    riverrun bench consume --megabytes 50
    """
    _check_extra()
    from riverrun.cli.benchmark import load

    shape = load.Shape(megabytes=megabytes, partitions=partitions)
    servers = _servers(server_pid)
    try:
        load.find_cluster(bootstrap)
        measured = [load.consume(bootstrap, topic, shape, servers) for _ in range(rounds + 1)][1:]
    except load.NoCluster as error:
        fail(str(error), UNREACHABLE)
    except load.BenchmarkError as error:
        fail(f"{error}; fill the topic first: riverrun bench produce --topic {topic}")
    _show("consume", shape, measured, as_json=as_json, has_cpu=bool(server_pid))


def end_to_end(
    bootstrap: str = BOOTSTRAP,
    topic: str = typer.Option("bench-latency", "--topic", help="Topic to use."),
    rate: int = typer.Option(1000, "--rate", min=1, help="Records per second."),
    seconds: int = typer.Option(8, "--seconds", min=1, help="How long."),
    acks: str = ACKS,
    as_json: bool = AS_JSON,
) -> None:
    """Latency from producer to consumer at a fixed rate.

    \b
    riverrun bench end-to-end --rate 500 --seconds 20
    """
    _check_extra()
    from riverrun.cli.benchmark import load

    _prepare(bootstrap, topic, 1)
    try:
        found = load.end_to_end(bootstrap, topic, rate=rate, seconds=seconds, acks=acks)
    except load.BenchmarkError as error:
        fail(str(error))
    if as_json:
        print(
            json.dumps({"p50_ms": found.p50_ms, "p99_ms": found.p99_ms, "records": found.records})
        )
    else:
        print(f"p50 {found.p50_ms:.2f} ms   p99 {found.p99_ms:.2f} ms   ({found.records} records)")


def compare(
    rounds: int = typer.Option(2, "--rounds", min=1, help="Rounds of each server, alternating."),
    quick: bool = typer.Option(False, "--quick", help="Only a few loads."),
    kafka: bool = typer.Option(True, help="Measure Apache Kafka beside riverrun."),
    nodes: list[int] = typer.Option(
        [1, 3], "--nodes", help="1 or 3; may be repeated. Default: both tables."
    ),
    only: str | None = typer.Option(
        None,
        "--only",
        metavar="load|failures|transactions|security",
        help="Only a part of the tables; failures are for three nodes.",
    ),
    output: Path | None = typer.Option(
        None, "--output", help="Also write the tables to this Markdown file."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Compare riverrun with Apache Kafka on this machine.

    Prints tables of ratios for one node and for three. Above 1 means that riverrun is better. Maven
    downloads Kafka's jars into the cache folder.

    \b
    riverrun bench compare --quick --output table.md
    riverrun bench compare --nodes 3 --rounds 1
    riverrun bench compare --nodes 3 --only failures
    riverrun bench compare --only transactions --rounds 1
    riverrun bench compare --only security --rounds 1
    """
    _check_extra()
    from riverrun.cli.benchmark import compare as comparison
    from riverrun.cli.benchmark import load, three
    from riverrun.cli.benchmark.peers import PeerUnavailable

    if any(count not in (1, 3) for count in nodes):
        fail("--nodes: only 1 and 3 are supported", USAGE)
    if only is not None and only not in three.PARTS:
        fail(f"--only: one of {', '.join(three.PARTS)}", USAGE)
    if only == "failures" and nodes != [3]:
        fail("--only failures needs --nodes 3", USAGE)
    parts = three.PARTS if only is None else (only,)
    tables: dict[int, RatioTable] = {}
    try:
        if 1 in nodes:
            tables[1] = comparison.compare(
                rounds=rounds,
                measures=_measures(parts, quick=quick),
                with_kafka=kafka,
                parts=_own_parts(parts, rounds=rounds, quick=quick),
            )
        if 3 in nodes:
            tables[3] = three.compare(rounds=rounds, quick=quick, with_kafka=kafka, parts=parts)
    except (load.BenchmarkError, PeerUnavailable) as error:
        fail(str(error))
    text = "\n".join(table.as_markdown() for table in tables.values())
    if as_json:
        print(json.dumps({str(count): table.as_json() for count, table in tables.items()}))
    else:
        print(text)
    if output is not None:
        output.write_text(text)


def _measures(parts: tuple[str, ...], *, quick: bool) -> list[Measure]:
    """What to measure on one node."""
    from riverrun.cli.benchmark import compare as comparison
    from riverrun.cli.benchmark.load import Servers
    from riverrun.cli.benchmark.transactions import TransactionBench

    def measure_transactions(name: str, running: Running, table: RatioTable) -> None:
        bench = TransactionBench(name, running.bootstrap, table, replicas=1)
        bench.run(Servers(running.pids), is_quick=quick)

    few = comparison.SHAPES[4:6] + comparison.SHAPES[3:4] + comparison.SHAPES[1:2]
    shapes = few if quick else comparison.SHAPES
    known: dict[str, Measure] = {
        "load": partial(comparison.measure_load, shapes=shapes),
        "transactions": measure_transactions,
    }
    return [measure for part, measure in known.items() if part in parts]


def _own_parts(parts: tuple[str, ...], *, rounds: int, quick: bool) -> list[OwnServersPart]:
    """What to measure on nodes with settings of their own."""
    from riverrun.cli.benchmark.security import bench

    security = bench.QUICK if quick else bench.SecurityBench()
    return [partial(security.run, rounds=rounds)] if "security" in parts else []


def quorum(
    elections: int = typer.Option(
        20, "--elections", min=1, help="Number of times that the leader is killed."
    ),
    operations: int = typer.Option(200, "--operations", min=1, help="Changes of each kind."),
    partitions: int = typer.Option(10_000, "--partitions", min=1, help="How many are created."),
    replicas: int = typer.Option(3, "--replicas", min=1, max=3, help="Replicas of each partition."),
    output: Path | None = typer.Option(
        None, "--output", help="Also write the table to this Markdown file."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Measure the quorum of three nodes against its aims.

    \b
    riverrun bench quorum
    riverrun bench quorum --elections 5 --partitions 1000
    """
    _check_extra()
    from riverrun.cli.benchmark import load
    from riverrun.cli.benchmark import quorum as measuring
    from riverrun.cli.benchmark.peers import PeerUnavailable

    try:
        report = measuring.measure(
            elections=elections, operations=operations, partitions=partitions, replicas=replicas
        )
    except (load.BenchmarkError, PeerUnavailable) as error:
        fail(str(error))
    print(json.dumps(report.as_json()) if as_json else report.as_markdown())
    if output is not None:
        output.write_text(report.as_markdown())


def scale(
    partitions: int = typer.Option(30_000, "--partitions", min=1, help="How many are created."),
    topic_partitions: int = typer.Option(
        1_000, "--topic-partitions", min=1, help="Partitions of each topic."
    ),
    output: Path | None = typer.Option(
        None, "--output", help="Also write the table to this Markdown file."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Measure three nodes with very many partitions of three replicas.

    Creates them, measures idle nodes, kills a broker and the controller, restarts a node, and
    returns leadership to the preferred replicas, while a producer writes to another topic.

    \b
    riverrun bench scale
    riverrun bench scale --partitions 3000 --topic-partitions 100
    """
    _check_extra()
    from riverrun.cli.benchmark import load
    from riverrun.cli.benchmark import scale as measuring
    from riverrun.cli.benchmark.peers import PeerUnavailable

    try:
        report = measuring.measure(partitions=partitions, topic_partitions=topic_partitions)
    except (load.BenchmarkError, PeerUnavailable) as error:
        fail(str(error))
    print(json.dumps(report.as_json()) if as_json else report.as_markdown())
    if output is not None:
        output.write_text(report.as_markdown())


def _prepare(bootstrap: str, topic: str, partitions: int) -> None:
    from riverrun.cli.benchmark import load

    try:
        load.create_topic(bootstrap, topic, partitions)
    except load.NoCluster as error:
        fail(str(error), UNREACHABLE)
    except load.BenchmarkError as error:
        fail(str(error))


def _servers(pids: list[int]) -> Servers:
    import psutil

    from riverrun.cli.benchmark import load

    try:
        return load.Servers(pids)
    except psutil.NoSuchProcess as error:
        fail(f"--server-pid {error.pid}: there is no such process", 2)


def _show(
    what: str, shape: Shape, measured: list[Throughput], *, as_json: bool, has_cpu: bool
) -> None:
    speed = statistics.median(m.megabytes_per_second for m in measured)
    cpu = statistics.median(m.cpu_ms_per_megabyte for m in measured) if has_cpu else None
    if as_json:
        print(json.dumps({"activity": what, "mb_per_second": speed, "cpu_ms_per_mb": cpu}))
        return
    shown = f"   server CPU {cpu:.2f} ms/MB" if cpu is not None else ""
    records = speed * 1e6 / shape.record_bytes
    print(f"{what}: {speed:.1f} MB/s ({records:,.0f} records/s){shown}")
