"""``riverrun chaos``: faults on real processes, and checks of what clients saw."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from riverrun.cli.support.apps import CommandApp
from riverrun.cli.support.options import (
    BOOTSTRAP_DEFAULT,
    FAILED,
    NOT_FOUND,
    USAGE,
    Bootstrap,
    NoHeaders,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from riverrun.chaos.runner import ScenarioResult
    from riverrun.chaos.scenarios.scenario import Scenario

NEEDED = ("confluent_kafka", "aiokafka", "psutil")
REMEDY = "pip install 'riverrun[chaos]'"
FAMILIES = ("replication", "quorum", "transactions", "groups", "moves")
"""The families of ``scenarios/catalog.py``, which needs the extra."""


def register(app: typer.Typer) -> None:
    chaos = CommandApp(
        help="Inject faults into real processes and check what clients saw. Needs an extra: "
        "pip install 'riverrun[chaos]'."
    )
    chaos.command("run")(run)
    chaos.command("list")(list_scenarios)
    chaos.command("check")(check_history)
    app.add_typer(chaos, name="chaos")


def _check_extra() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fail(f"chaos needs {', '.join(missing)}; {REMEDY}", USAGE)


def run(
    scenarios: list[str] = typer.Argument(
        metavar="SCENARIO",
        help=f"Scenario names, a family ({', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}), or all.",
    ),
    minutes: float | None = typer.Option(
        None,
        "--minutes",
        min=0,
        help="Repeat the scenarios for this long; default: each runs once.",
    ),
    rounds: int | None = typer.Option(
        None, "--rounds", min=1, help="Run each scenario this many times, at most for --minutes."
    ),
    report: Path | None = typer.Option(
        None, "--report", help="Write an HTML report with charts to this file."
    ),
    seed: int | None = typer.Option(None, "--seed", help="Seed of the random choices."),
    nodes: int = typer.Option(
        3, "--nodes", min=1, max=9, help="Number of nodes; some scenarios need more."
    ),
    rate: float = typer.Option(400, "--rate", min=1, help="Records per second."),
    peer: str = typer.Option(
        "riverrun", "--peer", envvar="PEER", help="riverrun, or kafka for comparison."
    ),
    is_secure: bool = typer.Option(
        False, "--secure", help="With TLS, logins and access control, as in `up --secure`."
    ),
    history: Path | None = typer.Option(
        None, "--history", help="Write the history of each run to this directory, as JSON lines."
    ),
    stop_early: bool = typer.Option(
        False, "--stop-early", help="Stop at the first scenario that fails."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON line for each run."),
    is_published: bool = typer.Option(
        False,
        "--publish",
        help="Publish the report to the cluster of --bootstrap, for its console.",
    ),
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
) -> None:
    """Run scenarios on a cluster of real processes with real clients.

    Every operation of every client is recorded and checked: no acknowledged record may be lost,
    duplicated, reordered or changed. Exit codes: 0 all promises held, 10 a promise was broken,
    11 the cluster did not recover in time, 12 a node crashed.

    \b
    riverrun chaos list
    riverrun chaos run leader-killed
    riverrun chaos run all --minutes 60 --report chaos.html
    riverrun chaos run all --rounds 20 --stop-early
    riverrun chaos run leader-killed --secure
    riverrun chaos run all --publish --bootstrap 127.0.0.1:9092
    """
    _check_extra()
    from riverrun.chaos.cluster_pool import ClusterPool
    from riverrun.chaos.runner import ScenarioRunner, exit_code
    from riverrun.chaos.scenarios.catalog import UnknownScenario, choose
    from riverrun.chaos.servers import SERVERS

    if peer not in SERVERS:
        fail(f"--peer {peer}: there are {' and '.join(SERVERS)}", USAGE)
    if is_secure and peer != "riverrun":
        fail("--secure is for riverrun only", USAGE)
    try:
        chosen = choose(scenarios)
    except UnknownScenario as error:
        fail(f"there is no scenario {error}; `riverrun chaos list` shows all", NOT_FOUND)
    began = time.monotonic()
    first_seed = seed if seed is not None else random.randrange(1 << 30)
    results: list[ScenarioResult] = []
    with ClusterPool(peer=peer, is_secure=is_secure, count=nodes, log=_log) as pool:
        player = ScenarioRunner(pool, log=_log, rate=rate)
        for number, scenario in enumerate(_rounds(chosen, minutes, rounds)):
            _log(f"{scenario.name}: {scenario.about}")
            result = player.run(scenario, first_seed + number)
            _show(result, as_json=as_json)
            if history is not None:
                _write_history(history, result, number)
            results.append(result)
            if stop_early and exit_code([result]):
                break
            if report is not None:
                _write_report(report, results, peer, time.monotonic() - began)
    seconds = time.monotonic() - began
    if not as_json:
        _log_summary(results, seconds)
    if is_published:
        from riverrun.chaos.publishing import publish

        publish(bootstrap, results, peer, seconds)
    raise typer.Exit(exit_code(results))


def _rounds(
    chosen: list[Scenario], minutes: float | None, rounds: int | None
) -> Iterator[Scenario]:
    """Repeat the scenarios ``rounds`` times, or until the time is up; by default once."""
    end = math.inf if minutes is None else time.monotonic() + minutes * 60
    for _ in itertools.count() if minutes is not None and rounds is None else range(rounds or 1):
        for scenario in chosen:
            if time.monotonic() >= end:
                return
            yield scenario


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _show(result: ScenarioResult, *, as_json: bool) -> None:
    figures = result.figures()
    wrongs = [*result.problems, *result.findings.as_lines()]
    if as_json:
        row = {
            "scenario": result.scenario.name,
            "verdict": result.verdict.value,
            "seed": result.seed,
            "seconds": round(result.seconds, 2),
            **figures,
            "problems": wrongs,
            "folder": str(result.folder) if result.folder else None,
        }
        print(json.dumps(row), flush=True)
        return
    print(
        f"{result.verdict.value.upper():8} {result.scenario.name}: "
        f"{figures['acknowledged']:,.0f} acknowledged, {figures['failed']:,.0f} failed, "
        f"longest gap {figures['longest_silence_s']:.2f} s, {result.seconds:.1f} s "
        f"(seed {result.seed})",
        flush=True,
    )
    for text in wrongs:
        print(f"         {text}")
    if result.folder is not None:
        print(f"         kept in {result.folder}")


def _log_summary(results: list[ScenarioResult], seconds: float) -> None:
    from riverrun.chaos.publishing import summary_of

    print(summary_of(results, seconds))


def _write_report(path: Path, results: list[ScenarioResult], peer: str, seconds: float) -> None:
    from riverrun.chaos.report import html

    try:
        path.write_text(html(results, title=f"Chaos: {peer}", seconds=seconds))
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", FAILED)


def _write_history(folder: Path, result: ScenarioResult, number: int) -> None:
    from riverrun.chaos.history import write_history

    folder.mkdir(parents=True, exist_ok=True)
    write_history(folder / f"{number:04}-{result.scenario.name}.jsonl", result.operations)


def list_scenarios(
    as_json: bool = typer.Option(False, "--json", help="Print JSON, for scripts."),
    no_headers: NoHeaders = False,
) -> None:
    """List all scenarios."""
    _check_extra()
    from riverrun.admin.tables import Table
    from riverrun.chaos.scenarios.catalog import ALL
    from riverrun.cli.support.output import Layout, print_json, print_tables

    if as_json:
        print_json([{"name": s.name, "family": s.family, "about": s.about} for s in ALL])
        return
    rows = [[s.name, s.family, s.about] for s in ALL]
    table = Table(columns=("scenario", "family", "description"), rows=list(rows))
    print_tables([table], Layout(has_headings=not no_headers))


def check_history(
    path: Path = typer.Argument(metavar="FILE", help="A history file that a run wrote."),
) -> None:
    """Check a history again."""
    from riverrun.chaos.checks.metadata_checks import check_metadata
    from riverrun.chaos.checks.record_checks import check_records
    from riverrun.chaos.history import read_history

    try:
        operations = list(read_history(path))
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}", NOT_FOUND)
    except (ValueError, KeyError, TypeError) as error:
        fail(f"{path} is not a history: {error}", USAGE)
    findings = check_records(operations)
    findings.merge(check_metadata(operations))
    for line in findings.as_lines():
        print(line)
    print(f"{len(operations)} operations: {'BROKEN' if findings else 'holds'}")
    raise typer.Exit(10 if findings else 0)
