"""``riverrun pipeline``: from topics and files to tables and topics, on Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    FAILED,
    NOT_FOUND,
    USAGE,
    AsJson,
    Bootstrap,
    NoHeaders,
    fail,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from riverrun.pipeline.declaration.model import Pipeline

NEEDED = ("pyspark", "pyarrow", "deltalake", "fastavro", "grpc_tools", "jsonschema_rs")
REMEDY = "pip install 'riverrun[spark]'"
STOP_SECONDS_MAX = 120
POLL_SECONDS = 0.2
REPEATED_SIGNAL_SECONDS = 0.5
"""Signals within this time count as one: timeout(1) signals the process and its group."""
SPARK_LOST = "Spark's Java process has ended; run the pipeline again to continue"
TEMPLATE = """\
# A riverrun pipeline. `riverrun docs pipelines` explains all fields.
# Check it with `riverrun pipeline validate`, run it with `riverrun pipeline run`.

[pipeline]
name = "{name}"
bootstrap = "{bootstrap}"

[sources.{source}]
topic = "{topic}"
values = "json"                     # json, avro, protobuf or raw
schema = "infer"                    # from the first records, or: "id BIGINT, name STRING"
dead_letters = "{topic}.dead-letters"  # topic for invalid records, with the reason

[transforms.prepared]
sql = "SELECT * FROM {source}"

[sinks.{source}_table]
input = "prepared"
format = "delta"                    # delta, iceberg or parquet
path = "tables/{topic}"
trigger = "5 seconds"

# Write to a topic as well:
# [sinks.{source}_topic]
# input = "prepared"
# topic = "{topic}-prepared"
"""

File = Annotated[Path, typer.Argument(metavar="FILE", help="Pipeline file in TOML or YAML.")]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="RIVERRUN_SPARK_MASTER",
        help="Where Spark runs: local[*], spark://HOST:PORT, yarn, k8s://...",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Stop when all records that exist now are processed.")
]
UiPort = Annotated[
    int, typer.Option("--ui-port", min=0, help="Port of the Spark UI; 0 disables it.")
]
OtherBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,
        help="Address of the cluster. Overrides the one in the file.",
    ),
]


def register(app: typer.Typer) -> None:
    pipeline = CommandApp(
        help="Run pipelines on Spark: topics and files to tables and topics. Needs the extra: "
        "pip install 'riverrun[spark]'."
    )
    for name, command in (
        ("init", init),
        ("validate", validate),
        ("run", run),
        ("status", status),
        ("stop", stop),
        ("tables", tables),
        ("pack", pack),
    ):
        pipeline.command(name)(command)
    app.add_typer(pipeline, name="pipeline")


def check_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fail(f"pipelines need {', '.join(missing)}; {REMEDY}", USAGE)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create.")] = Path(
        "pipeline.toml"
    ),
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.")] = "events",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write an example pipeline: a topic with JSON values into a Delta table.

    \b
    riverrun pipeline init clicks.toml --topic clicks
    riverrun pipeline run clicks.toml
    """
    from riverrun.cli.support.session import addresses_of

    if file.exists():
        fail(f"{file} already exists; choose another name, or remove it", USAGE)
    if file.suffix != ".toml":
        fail(f"{file}: init writes TOML; use the name {file.with_suffix('.toml')}", USAGE)
    addresses_of(bootstrap)
    file.write_text(_example(file.stem, topic, bootstrap))
    print(f"{file} reads topic {topic}. Run it with: riverrun pipeline run {file}")


def validate(file: File) -> None:
    """Check a pipeline file, and print every problem with its line and remedy.

    \b
    riverrun pipeline validate clicks.toml
    """
    from riverrun.cli.support.output import counted

    pipeline = _read(file, None)
    parts = [
        counted(len(pipeline.sources), "source"),
        counted(len(pipeline.transforms), "transform"),
        counted(len(pipeline.sinks), "sink"),
    ]
    print(f"{file} is valid: pipeline {pipeline.name} with {', '.join(parts)}")


def run(
    file: File,
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: OtherBootstrap = None,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C, and show its progress.

    A failed query restarts from its checkpoint and shows the reason. Exit codes: 1 if only the
    user can resolve an error, 3 if the cluster is unreachable at the first start. With --once the
    command exits instead of waiting: 3 if the cluster is unreachable, 4 if a topic does not exist.

    \b
    riverrun pipeline run clicks.toml
    riverrun pipeline run clicks.toml --once --master 'local[2]'
    riverrun pipeline run clicks.toml --master spark://10.0.0.5:7077
    """
    from riverrun.pipeline.run.preflight import check_before_start

    check_extra()
    pipeline = _read(file, bootstrap)
    check_before_start(pipeline, is_once=is_once)
    raise typer.Exit(_run(pipeline, master, is_once=is_once, ui_port=ui_port, as_json=as_json))


def tables(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the tables.")] = Path(
        "tables"
    ),
    values: Annotated[
        str, typer.Option("--values", help="json (inferred columns) or raw (key and value).")
    ] = "json",
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
) -> None:
    """Mirror every topic with the setting riverrun.table to a table of that format.

    Restart the command to include topics that get the setting later.

    \b
    riverrun topics alter clicks --config riverrun.table=delta
    riverrun pipeline tables --folder /data/tables
    """
    from riverrun.cli.support.session import run as run_request
    from riverrun.pipeline.declaration.table_topics import tables_pipeline
    from riverrun.pipeline.topics import find_table_topics

    check_extra()
    if values not in ("json", "raw"):
        fail(f"--values {values}: choose json or raw", USAGE)
    found = run_request(bootstrap, find_table_topics)
    if not found:
        fail(
            "no topic has the setting riverrun.table\n"
            "  Set it with `riverrun topics alter TOPIC --config riverrun.table=delta`.",
            NOT_FOUND,
        )
    pipeline = tables_pipeline(found, folder.absolute(), bootstrap, values)
    raise typer.Exit(_run(pipeline, master, is_once=is_once, ui_port=ui_port, as_json=as_json))


def status(
    file: File, as_json: AsJson = False, no_headers: NoHeaders = False, watch: Watch = False
) -> None:
    """Show the status of a pipeline that runs in another process.

    Columns: sink, state, rows written since the start, rows per second, lag in records,
    milliseconds of the last batch, dead letters, restarts. Then each partition with a lag:
    sink, partition, lag (all partitions with --json).

    \b
    riverrun pipeline status clicks.toml --watch
    """
    from dataclasses import asdict

    from riverrun.cli.support.output import Layout, print_json, print_tables
    from riverrun.cli.support.watching import show
    from riverrun.pipeline.run.display import status_tables
    from riverrun.pipeline.run.status import is_alive, read_status

    pipeline = _read(file, None)

    def once() -> None:
        found = read_status(pipeline.state)
        if found is None:
            fail(
                f"{pipeline.name} has never run; start it with `riverrun pipeline run {file}`",
                NOT_FOUND,
            )
        is_running = is_alive(found)
        if as_json:
            print_json({**asdict(found), "is_running": is_running})
        else:
            layout = Layout(has_headings=not no_headers)
            print_tables(status_tables(found, is_running=is_running), layout)

    show(once, is_watched=watch)


def stop(file: File) -> None:
    """Stop a running pipeline after its current batches, and wait until it has ended.

    \b
    riverrun pipeline stop clicks.toml
    """
    from riverrun.pipeline.run.status import is_alive, read_status, request_stop

    pipeline = _read(file, None)
    found = read_status(pipeline.state)
    if found is None or not is_alive(found):
        fail(f"{pipeline.name} is not running", NOT_FOUND)
    request_stop(pipeline.state)
    end = time.monotonic() + STOP_SECONDS_MAX
    while is_alive(found):
        if time.monotonic() > end:
            fail(f"{pipeline.name} (process {found.pid} on {found.host}) has not ended yet", FAILED)
        time.sleep(POLL_SECONDS)
        found = read_status(pipeline.state) or found
    print(f"{pipeline.name} has ended")


def pack(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File to create: NAME.tar or NAME.tar.gz.")
    ] = Path("environment.tar.gz"),
    more: Annotated[
        list[str], typer.Option("--with", help="A package that your functions need.")
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Pack the packages that executors on other machines need into an archive.

    \b
    riverrun pipeline pack environment.tar.gz
    # in the pipeline file: environment = "environment.tar.gz"
    """
    from importlib.metadata import PackageNotFoundError

    check_extra()
    from pyspark_riverrun.environment import pack as pack_environment

    if not file.name.endswith((".tar", ".tar.gz", ".tgz")):
        fail(f"{file}: Spark unpacks .tar, .tar.gz and .tgz", USAGE)
    try:
        count = pack_environment(file.absolute(), more)
    except PackageNotFoundError as error:
        fail(f"package {error.name} is not installed here", NOT_FOUND)
    size = file.stat().st_size / 1_000_000
    print(f"{file} has {count} packages, {size:.0f} MB")


def _example(name: str, topic: str, bootstrap: str) -> str:
    plain = "".join(letter if letter.isalnum() else "_" for letter in topic)
    source = plain if plain[:1].isalpha() else f"t_{plain}"
    return TEMPLATE.format(name=name, topic=topic, source=source, bootstrap=bootstrap)


def _read(file: Path, bootstrap: str | None) -> Pipeline:
    from riverrun.pipeline.declaration.parser import read_pipeline
    from riverrun.pipeline.errors import DeclarationError

    try:
        return read_pipeline(file, bootstrap=bootstrap)
    except DeclarationError as error:
        fail(str(error), NOT_FOUND if not file.exists() else USAGE)


def _run(pipeline: Pipeline, master: str, *, is_once: bool, ui_port: int, as_json: bool) -> int:
    """Run until all queries end or a stop is requested. Returns the exit code."""
    from riverrun.pipeline.run.session import close_session
    from riverrun.pipeline.run.status import AlreadyRunning, clear_stop, run_lock

    try:
        with run_lock(pipeline.state):
            clear_stop(pipeline.state)
            try:
                spark = _start_spark(pipeline, master, ui_port)
                # A new session installs a SIGINT handler that cancels all jobs, including the
                # current batch. Ours must be installed after it.
                signals = _install_signal_handlers()
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
            try:
                failures = _supervise(spark, pipeline, signals, is_once=is_once, as_json=as_json)
            finally:
                close_session(spark)
                clear_stop(pipeline.state)
    except AlreadyRunning as error:
        fail(f"{pipeline.name}: {error}; stop it with `riverrun pipeline stop`", FAILED)
    for reason in failures:
        print(f"riverrun: {reason}", file=sys.stderr)
    return FAILED if failures else 0


def _start_spark(pipeline: Pipeline, master: str, ui_port: int) -> SparkSession:
    """Start Spark, and write the status before and after a failure."""
    from riverrun.pipeline.run.session import open_session
    from riverrun.pipeline.run.status import starting_status, write_status

    now = starting_status(pipeline.name, master, list(pipeline.sinks))
    write_status(pipeline.state, now)
    if sys.stderr.isatty():
        print(f"starting Spark ({master}) ...", file=sys.stderr, flush=True)
    is_up = False
    try:
        spark = open_session(pipeline, master, ui_port)
        is_up = True
    finally:
        if not is_up:
            now.has_ended = True
            for query in now.queries:
                query.state = "ended"
            write_status(pipeline.state, now)
    return spark


def _supervise(
    spark: SparkSession, pipeline: Pipeline, signals: list[int], *, is_once: bool, as_json: bool
) -> list[str]:
    """Run the queries, and return the reasons of permanent failures.

    The last status always says that the run has ended; otherwise it would look alive.
    """
    from riverrun.pipeline.run.cluster_watch import ClusterWatch
    from riverrun.pipeline.run.display import Display
    from riverrun.pipeline.run.session import SPARK_GONE
    from riverrun.pipeline.run.status import is_stop_requested, write_status
    from riverrun.pipeline.run.supervisor import PipelineSupervisor

    supervisor = PipelineSupervisor(spark, pipeline, is_once=is_once)
    lost: list[str] = []
    print_line = partial(print, flush=True)
    with Display(print_line, as_json=as_json) as display, ClusterWatch(pipeline) as watch:
        try:
            while not supervisor.is_over and not signals and not is_stop_requested(pipeline.state):
                supervisor.tick()
                now = watch.adjusted(supervisor.status())
                write_status(pipeline.state, now)
                display.show(now)
                time.sleep(POLL_SECONDS)
        except SPARK_GONE:
            if not signals:  # a signal to the process group also ends Java, which is no failure
                lost.append(f"{pipeline.name}: {SPARK_LOST}")
        finally:
            supervisor.stop()
            now = supervisor.status()
            now.has_ended = True
            write_status(pipeline.state, now)
            display.show(now, is_last=True)
    return supervisor.failures + lost


def _install_signal_handlers() -> list[int]:
    """Collect signals that stop the run after the current batch. A second signal exits at once."""
    signals: list[int] = []
    times: list[float] = []

    def receive(number: int, _frame: object) -> None:
        now = time.monotonic()
        if signals and now - times[0] > REPEATED_SIGNAL_SECONDS:
            os._exit(128 + number)
        signals.append(number)
        times.append(now)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, receive)
    return signals
