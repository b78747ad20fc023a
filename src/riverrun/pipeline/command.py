"""``riverrun pipeline``: from topics and files to tables and topics, on Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
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
from riverrun.pipeline.pause_command import pause, resume

if TYPE_CHECKING:
    from riverrun.cli.support.output import Layout
    from riverrun.pipeline.declaration.model import Pipeline
    from riverrun.pipeline.run.display import Display

NEEDED = ("pyspark", "pyarrow", "deltalake", "fastavro", "grpc_tools", "jsonschema_rs")
REMEDY = "pip install 'riverrun[spark]'"
STOP_SECONDS_MAX = 120
POLL_SECONDS = 0.2
INTERRUPTED = 128 + signal.SIGINT
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
        metavar="URL",
        envvar="RIVERRUN_SPARK_MASTER",
        help="Where Spark runs: local[*], spark://HOST:PORT, yarn, k8s://...",
    ),
]
Once = Annotated[
    bool, typer.Option("--once", help="Stop when all records that exist now are processed.")
]
UiPort = Annotated[
    int,
    typer.Option("--ui-port", metavar="PORT", min=0, help="Port of the Spark UI; 0 disables it."),
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
        ("pause", pause),
        ("resume", resume),
        ("tables", tables),
        ("pack", pack),
    ):
        pipeline.command(name)(command)
    app.add_typer(pipeline, name="pipeline")


def check_extra(otherwise: str = "") -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fail(f"pipelines need {', '.join(missing)}; {REMEDY}{otherwise}", USAGE)


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to create.")] = Path(
        "pipeline.toml"
    ),
    topic: Annotated[
        str, typer.Option("--topic", metavar="TOPIC", help="Topic to read.")
    ] = "events",
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


def validate(
    file: File,
    has_no_sql: Annotated[
        bool, typer.Option("--no-sql", help="Do not start Spark to check SQL and functions.")
    ] = False,
) -> None:
    """Check a pipeline file, its SQL and its functions.

    Prints every problem with its line and remedy. Needs no cluster. SQL over sources with a
    declared schema is checked by a local Spark, which takes some seconds to start. Exit codes: 0
    if the file is valid, 2 if it is not, 4 if it does not exist.

    \b
    riverrun pipeline validate clicks.toml
    riverrun pipeline validate clicks.toml --no-sql
    """
    from riverrun.admin.tables import counted

    pipeline = _read(file, None)
    unchecked: list[str] = []
    if pipeline.transforms and not has_no_sql:
        check_extra("; or check all but the SQL with --no-sql")
        unchecked = _check_sql(pipeline)
    parts = [
        counted(len(pipeline.sources), "source"),
        counted(len(pipeline.transforms), "transform"),
        counted(len(pipeline.sinks), "sink"),
    ]
    print(f"{file} is valid: pipeline {pipeline.name} with {', '.join(parts)}")
    for source in unchecked:
        print(f"sources.{source} has no declared columns: its SQL is checked when a run starts.")


def run(
    file: File,
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: OtherBootstrap = None,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
) -> None:
    """Run a pipeline until Ctrl-C, and show its progress.

    Ctrl-C and SIGTERM end it after the current batch; a second one ends it at once, and the next
    run repeats the batch. A failed query restarts from its checkpoint and shows the reason. The
    output of Spark is in spark.log in the state folder.

    \b
    Exit codes:
      0         ended after a batch: by --once, Ctrl-C, SIGTERM or `pipeline stop`
      1         a sink or Spark has failed, or the pipeline already runs
      2         the file is invalid
      3         the cluster is unreachable at the first start, or with --once
      4         the file does not exist; with --once, a topic does not exist
      130, 143  ended at once by Ctrl-C or SIGTERM

    \b
    riverrun pipeline run clicks.toml
    riverrun pipeline run clicks.toml --once --master 'local[2]'
    riverrun pipeline run clicks.toml --master spark://10.0.0.5:7077
    """
    check_extra()
    try:
        from riverrun.pipeline.run.preflight import check_before_start

        pipeline = _read(file, bootstrap)
        check_before_start(pipeline, is_once=is_once)
        display = _display(as_json=as_json, has_headings=not no_headers)
        code = _run(pipeline, master, display, is_once=is_once, ui_port=ui_port)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None  # nothing has started
    raise typer.Exit(code)


def tables(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Folder of the tables.")
    ] = Path("tables"),
    values: Annotated[
        str,
        typer.Option(
            "--values", metavar="json|raw", help="Inferred columns, or only key and value."
        ),
    ] = "json",
    master: Master = "local[*]",
    is_once: Once = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    ui_port: UiPort = 4040,
    as_json: AsJson = False,
    no_headers: NoHeaders = False,
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
    display = _display(as_json=as_json, has_headings=not no_headers)
    raise typer.Exit(_run(pipeline, master, display, is_once=is_once, ui_port=ui_port))


def status(
    file: File, as_json: AsJson = False, no_headers: NoHeaders = False, watch: Watch = False
) -> None:
    """Show the status of a pipeline, also while it does not run.

    \b
    Without a terminal, each row starts with its kind:
      pipeline  name, state, process, host, Spark UI, log of Spark
      sink      sink, state, rows of this run, rows since the table was created,
                rows per second, lag in records, milliseconds of the last batch,
                dead letters, restarts
      batch     sink, number of the batch under way, its records, its seconds
      lag       sink, partition, lag; only partitions with a lag
      transactions  sink, transactions that a dead run has left open
      reason    sink, last failure

    \b
    Exit codes:
      0  the pipeline runs, or has ended as requested
      1  the pipeline is dead (its process was killed), or a sink has failed
      4  the pipeline has never run, or the file does not exist

    \b
    riverrun pipeline status clicks.toml --watch
    """
    from riverrun.cli.support.output import Layout
    from riverrun.cli.support.watching import show

    pipeline = _read(file, None)
    layout = Layout(has_headings=not no_headers)
    show(lambda: _show_status(pipeline, file, layout, as_json=as_json), is_watched=watch)


def stop(file: File) -> None:
    """Stop a running pipeline after its current batches, and wait until it has ended.

    It needs the state folder of the pipeline. `pipeline pause` works from every machine and leaves
    the process waiting.

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
        list[str],
        typer.Option("--with", metavar="PACKAGE", help="A package that your functions need."),
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


def _show_status(pipeline: Pipeline, file: Path, layout: Layout, *, as_json: bool) -> None:
    from dataclasses import asdict

    from riverrun.cli.support.output import is_terminal, print_json, print_tables
    from riverrun.pipeline.run.cluster_watch import lag_without_run
    from riverrun.pipeline.run.display import head_table, status_tables
    from riverrun.pipeline.run.status import is_alive, read_status, state_of_pipeline

    found = read_status(pipeline.state)
    if found is None:
        fail(
            f"{pipeline.name} has never run; start it with `riverrun pipeline run {file}`",
            NOT_FOUND,
        )
    is_running = is_alive(found)
    if not is_running:
        found = lag_without_run(pipeline, found)
    state = state_of_pipeline(found, is_running=is_running)
    if as_json:
        print_json({**asdict(found), "is_running": is_running, "state": state})
    else:
        tables = status_tables(found, is_running=is_running)
        head = [] if is_terminal() else [head_table(found, is_running=is_running)]
        print_tables([*head, *tables], layout)
    if state in ("dead", "failed"):
        raise typer.Exit(FAILED)


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


def _display(*, as_json: bool, has_headings: bool) -> Display:
    from riverrun.pipeline.run.display import Display

    return Display(_print_line, _print_error, as_json=as_json, has_headings=has_headings)


def _print_line(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run(pipeline: Pipeline, master: str, display: Display, *, is_once: bool, ui_port: int) -> int:
    """Run until all queries end or a stop is requested. Returns the exit code."""
    from riverrun.pipeline.run.foreground import run_pipeline
    from riverrun.pipeline.run.status import AlreadyRunning

    try:
        outcome = run_pipeline(pipeline, master, is_once=is_once, ui_port=ui_port, display=display)
    except AlreadyRunning as error:
        fail(f"{pipeline.name}: {error}; stop it with `riverrun pipeline stop`", FAILED)
    for message in outcome.messages:
        _print_error(f"riverrun: {message}")
    return outcome.code


def _check_sql(pipeline: Pipeline) -> list[str]:
    """Analyze the SQL with a local Spark. Exits if there are problems.

    Returns the sources whose columns are not declared, so that their SQL is not checked.
    """
    from riverrun.pipeline.errors import DeclarationError
    from riverrun.pipeline.run.short_job import run_job
    from riverrun.pipeline.run.sql_check import (
        check_pipeline,
        has_checkable_sql,
        sources_without_columns,
    )

    if has_checkable_sql(pipeline):
        if sys.stderr.isatty():
            text = "starting a local Spark to check the SQL; --no-sql skips this"
            print(text, file=sys.stderr, flush=True)
        try:
            run_job(
                lambda spark: check_pipeline(spark, pipeline),
                app="validate",
                master="local[1]",
                config=pipeline.spark,
            )
        except DeclarationError as error:
            fail(str(error), USAGE)
    return sources_without_columns(pipeline, list(pipeline.transforms))
