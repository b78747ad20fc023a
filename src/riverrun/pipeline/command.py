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

from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    BOOTSTRAP_VARIABLE,
    FAILED,
    NOT_FOUND,
    USAGE,
    AsJson,
    Bootstrap,
    fail,
)
from riverrun.cli.support.watching import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from riverrun.pipeline.declaration.model import Pipeline

NEEDED = ("pyspark", "pyarrow", "deltalake")
REMEDY = "in a clone: pip install -e '.[spark]' --constraint constraints.txt"
STOP_SECONDS_MAX = 120
LOOK_EVERY_SECONDS = 0.2
SAME_REQUEST_SECONDS = 0.5
SPARK_LOST = "Spark's Java process has ended; run the pipeline again, it goes on where it was"

File = Annotated[Path, typer.Argument(metavar="FILE", help="A pipeline, in TOML or YAML.")]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="RIVERRUN_SPARK_MASTER",
        help="Where Spark runs: local[*], spark://HOST:PORT, yarn, k8s://...",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="End when all that is there now has been processed.")
]
UiPort = Annotated[
    int, typer.Option("--ui-port", min=0, help="Port of the Spark UI; 0 is without.")
]
OtherBootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "--bootstrap-server", "-b", metavar="HOST:PORT", envvar=BOOTSTRAP_VARIABLE,
        help="Address of the cluster, instead of the one in the file.",
    ),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    pipeline = typer.Typer(
        help="Run pipelines on Spark: topics and files to tables and topics. Needs an extra: "
        "pip install -e '.[spark]' -c constraints.txt in a clone.",
        no_args_is_help=True,
        rich_markup_mode=None,
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
    file: Annotated[Path, typer.Argument(metavar="FILE", help="To be made.")] = Path(
        "pipeline.toml"
    ),
    topic: Annotated[str, typer.Option("--topic", help="The topic to read.")] = "events",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Write a pipeline to begin with: a topic of JSON into a Delta table.

    \b
    riverrun pipeline init clicks.toml --topic clicks
    riverrun pipeline run clicks.toml
    """
    from riverrun.cli.support.session import addresses_of
    from riverrun.pipeline.declaration.template import template

    if file.exists():
        fail(f"{file} exists already; choose another name, or remove it", USAGE)
    if file.suffix != ".toml":
        fail(f"{file}: init writes TOML; name it {file.with_suffix('.toml')}", USAGE)
    addresses_of(bootstrap)
    file.write_text(template(file.stem, topic, bootstrap))
    print(f"{file} reads topic {topic}. Run it with: riverrun pipeline run {file}")


def validate(file: File) -> None:
    """Check a pipeline's file, and name all that is wrong with its line and what helps.

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
    print(f"{file} is well: pipeline {pipeline.name} with {', '.join(parts)}")


def run(
    file: File,
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: OtherBootstrap = None,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
) -> None:
    """Run a pipeline until Ctrl-C, and show how it goes.

    A query that fails is started again from its checkpoint, and says why. Ends with code 1 when
    something only a person can decide stands in the way, with 3 when nobody answers at the first
    start. With --once it ends where it would wait: with 3, and with 4 when a topic is not there.

    \b
    riverrun pipeline run clicks.toml
    riverrun pipeline run clicks.toml --once --master 'local[2]'
    riverrun pipeline run clicks.toml --master spark://10.0.0.5:7077
    """
    from riverrun.pipeline.run.preflight import look

    check_extra()
    pipeline = _read(file, bootstrap)
    look(pipeline, is_once=is_once)
    raise typer.Exit(_run(pipeline, master, is_once=is_once, ui_port=ui_port, as_json=as_json))


def tables(
    folder: Annotated[Path, typer.Option("--folder", help="Where the tables are kept.")] = Path(
        "tables"
    ),
    values: Annotated[
        str, typer.Option("--values", help="json (columns are found), or raw (key and value).")
    ] = "json",
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
) -> None:
    """Keep every topic with the setting riverrun.table as a table of that format.

    Topics that get the setting later are taken up when the command is started again.

    \b
    riverrun topics alter clicks --config riverrun.table=delta
    riverrun pipeline tables --folder /data/tables
    """
    from riverrun.cli.support.session import run as ask_cluster
    from riverrun.pipeline.declaration.table_topics import tables_pipeline
    from riverrun.pipeline.topics import ask_table_topics

    check_extra()
    if values not in ("json", "raw"):
        fail(f"--values {values}: choose json or raw", USAGE)
    found = ask_cluster(bootstrap, ask_table_topics)
    if not found:
        fail(
            "no topic is to be kept as a table\n"
            "  Set it with `riverrun topics alter TOPIC --config riverrun.table=delta`.",
            NOT_FOUND,
        )
    pipeline = tables_pipeline(found, folder.absolute(), bootstrap, values)
    raise typer.Exit(_run(pipeline, master, is_once=is_once, ui_port=ui_port, as_json=as_json))


def status(file: File, as_json: AsJson = False, watch: Watch = False) -> None:
    """Show how a pipeline fares that runs somewhere else: rows, lag, batch time, failures.

    Columns: sink, state, rows written since the start, rows per second, lag in records,
    milliseconds of the last batch, dead letters, restarts. Then each partition that lags behind:
    sink, partition, lag (of all partitions with --json).

    \b
    riverrun pipeline status clicks.toml --watch
    """
    from dataclasses import asdict

    from riverrun.cli.support.output import print_json, print_tables
    from riverrun.cli.support.watching import show
    from riverrun.pipeline.run.display import status_tables
    from riverrun.pipeline.run.status import is_alive, read_status

    pipeline = _read(file, None)

    def once() -> None:
        found = read_status(pipeline.state)
        if found is None:
            fail(f"{pipeline.name} has never run; start it with `riverrun pipeline run {file}`",
                 NOT_FOUND)  # fmt: skip
        is_running = is_alive(found)
        if as_json:
            print_json({**asdict(found), "is_running": is_running})
        else:
            print_tables(status_tables(found, is_running=is_running))

    show(once, is_watched=watch)


def stop(file: File) -> None:
    """Ask a running pipeline to end after its current batches, and wait until it has.

    \b
    riverrun pipeline stop clicks.toml
    """
    from riverrun.pipeline.run.status import ask_to_stop, is_alive, read_status

    pipeline = _read(file, None)
    found = read_status(pipeline.state)
    if found is None or not is_alive(found):
        fail(f"{pipeline.name} is not running", NOT_FOUND)
    ask_to_stop(pipeline.state)
    end = time.monotonic() + STOP_SECONDS_MAX
    while is_alive(found):
        if time.monotonic() > end:
            fail(f"{pipeline.name} (process {found.pid} on {found.host}) has not ended yet", FAILED)
        time.sleep(LOOK_EVERY_SECONDS)
        found = read_status(pipeline.state) or found
    print(f"{pipeline.name} has ended")


def pack(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="To be made: NAME.tar, or NAME.tar.gz.")
    ] = Path("environment.tar.gz"),
    more: Annotated[
        list[str], typer.Option("--with", help="A package that functions of yours need.")
    ] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Pack what executors on other machines need into an archive.

    \b
    riverrun pipeline pack environment.tar.gz
    # and in the pipeline's file: environment = "environment.tar.gz"
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


def _read(file: Path, bootstrap: str | None) -> Pipeline:
    from riverrun.pipeline.declaration.parser import read_pipeline
    from riverrun.pipeline.errors import DeclarationError

    try:
        return read_pipeline(file, bootstrap=bootstrap)
    except DeclarationError as error:
        fail(str(error), NOT_FOUND if not file.exists() else USAGE)


def _run(pipeline: Pipeline, master: str, *, is_once: bool, ui_port: int, as_json: bool) -> int:
    """Until it is over, asked to stop, or failed beyond help; gives the exit code."""
    from riverrun.pipeline.run.session import close_session
    from riverrun.pipeline.run.status import RunsAlready, clear_stop, only_run

    try:
        with only_run(pipeline.state):
            clear_stop(pipeline.state)
            try:
                spark = _start_spark(pipeline, master, ui_port)
                # PySpark handles Ctrl-C by cancelling all jobs, the batch under way with them, and
                # says so when a session is made: whoever speaks last is heard.
                asked = _note_signals()
            except KeyboardInterrupt:
                return 128 + signal.SIGINT
            try:
                failures = _supervise(spark, pipeline, asked, is_once=is_once, as_json=as_json)
            finally:
                close_session(spark)
                clear_stop(pipeline.state)
    except RunsAlready as error:
        fail(f"{pipeline.name}: {error}; end it with `riverrun pipeline stop`", FAILED)
    for reason in failures:
        print(f"riverrun: {reason}", file=sys.stderr)
    return FAILED if failures else 0


def _start_spark(pipeline: Pipeline, master: str, ui_port: int) -> SparkSession:
    """Others are told that we start, and that we have not when it failed."""
    from riverrun.pipeline.run.session import open_session
    from riverrun.pipeline.run.status import starting, write_status

    now = starting(pipeline.name, master, list(pipeline.sinks))
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
    spark: SparkSession, pipeline: Pipeline, asked: list[int], *, is_once: bool, as_json: bool
) -> list[str]:
    """Gives the reasons of what failed beyond help. However it ends, others are told that it did:
    a status that says "running" would be believed.
    """
    from riverrun.pipeline.run.cluster_watch import Watch as ClusterWatch
    from riverrun.pipeline.run.display import Display
    from riverrun.pipeline.run.session import SPARK_GONE
    from riverrun.pipeline.run.status import is_asked_to_stop, write_status
    from riverrun.pipeline.run.supervisor import Supervisor

    supervisor = Supervisor(spark, pipeline, is_once=is_once)
    lost: list[str] = []
    say = partial(print, flush=True)
    with Display(say, as_json=as_json) as display, ClusterWatch(pipeline) as watch:
        try:
            while not supervisor.is_over and not asked and not is_asked_to_stop(pipeline.state):
                supervisor.tick()
                now = watch.corrected(supervisor.status())
                write_status(pipeline.state, now)
                display.show(now)
                time.sleep(LOOK_EVERY_SECONDS)
        except SPARK_GONE:
            if not asked:  # a signal to all our processes ends Java too, and is no failure
                lost.append(f"{pipeline.name}: {SPARK_LOST}")
        finally:
            supervisor.stop()
            now = supervisor.status()
            now.has_ended = True
            write_status(pipeline.state, now)
            display.show(now, is_last=True)
    return supervisor.failures + lost


def _note_signals() -> list[int]:
    """What asks us to end, as it comes: the batch under way is finished first."""
    asked: list[int] = []
    times: list[float] = []

    def note(number: int, _frame: object) -> None:
        # Whoever asks twice does not want to wait for a batch; but timeout(1) sends to us and to
        # our group, which is one request.
        now = time.monotonic()
        if asked and now - times[0] > SAME_REQUEST_SECONDS:
            os._exit(128 + number)
        asked.append(number)
        times.append(now)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    return asked
