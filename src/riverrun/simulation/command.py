"""``riverrun simulate``: runs seeds until one fails, all are done, or the time is up."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from riverrun.simulation.report import AnyBug, SimulationReport
    from riverrun.simulation.workloads.plans import AnyPlan

HASH_SEED = "0"
ASK_PERSONALITY = 0xFFFFFFFF
NO_RANDOM_ADDRESSES = 0x0040000
"""From Linux's <sys/personality.h>."""
SEEDS_DEFAULT = "1..20"
PROGRESS_SECONDS = 5.0


def register(app: typer.Typer) -> None:
    app.command(name="simulate")(simulate)


def simulate(
    seed: int | None = typer.Option(None, "--seed", help="Run only this seed."),
    seeds: str | None = typer.Option(None, "--seeds", help="Run a range of seeds, such as 1..100."),
    story: bool = typer.Option(False, "--story", help="Print all events."),
    budget: float | None = typer.Option(None, "--budget", help="Stop after this many seconds."),
    jobs: int = typer.Option(1, "--jobs", min=1, help="Run this many seeds in parallel."),
    nodes: int = typer.Option(1, "--nodes", min=1, help="Simulate a cluster of this size."),
    moves: bool = typer.Option(
        False, "--moves", help="Move partitions between the nodes of a cluster."
    ),
    transactions: bool = typer.Option(
        False, "--transactions", help="Use transactions, in a cluster of several nodes."
    ),
    groups: bool = typer.Option(
        False,
        "--groups",
        help="Use groups of the consumer protocol, in a cluster of several nodes.",
    ),
    is_secure: bool = typer.Option(
        False, "--secure", help="Use logins and access control, in a cluster of several nodes."
    ),
    faults: str | None = typer.Option(
        None, "--faults", help="Inject these faults, in the format that a failure prints."
    ),
    bug: str | None = typer.Option(
        None, "--flaw", help="Plant a bug that the simulation must find; `?` lists them."
    ),
) -> None:
    """Run a node or a cluster in a simulation with faults.

    Simulated clients use it, and every promise to them is checked. The same seed always gives the
    same run. Exit codes: 0 all promises held, 10 a promise was broken, 11 the cluster did not
    recover in time, 12 a node crashed.

    \b
    riverrun simulate --seed 7 --story
    riverrun simulate --seeds 1..1000 --jobs 2 --budget 600
    riverrun simulate --nodes 3 --seeds 1..100
    riverrun simulate --nodes 4 --moves --seeds 1..100
    riverrun simulate --nodes 3 --transactions --seeds 1..100
    riverrun simulate --nodes 3 --groups --seeds 1..100
    riverrun simulate --nodes 3 --secure --seeds 1..100
    riverrun simulate --nodes 3 --transactions --flaw '?'
    """
    _fix_order()
    chosen = _parse_seeds(seed, seeds)
    try:
        from riverrun.simulation.faults.schedule import parse_schedule
        from riverrun.simulation.report import draw_any
    except ModuleNotFoundError as error:
        typer.echo(f"simulate needs {error.name}; pip install 'riverrun[chaos]'", err=True)
        raise typer.Exit(2) from None
    try:
        schedule = None if faults is None else parse_schedule(faults)
    except ValueError as error:
        raise typer.BadParameter(f"invalid fault schedule: {error}") from None
    planted = _bug_of(
        bug, nodes=nodes, has_transactions=transactions, has_groups=groups, is_secure=is_secure
    )
    if (transactions or groups or is_secure) and nodes == 1:
        raise typer.BadParameter("--transactions, --groups and --secure need --nodes 2 or more")
    draw = partial(
        draw_any,
        nodes=nodes,
        faults=schedule,
        has_moves=moves,
        has_transactions=transactions,
        has_groups=groups,
        is_secure=is_secure,
        bug=planted,
    )
    _run_all(chosen, draw, jobs=jobs, budget=budget, story=story, is_single=seed is not None)


def _run_all(
    chosen: range,
    draw: Callable[[int], AnyPlan],
    *,
    jobs: int,
    budget: float | None,
    story: bool,
    is_single: bool,
) -> None:
    from riverrun.simulation.report import SeedVerdict, run_seed

    began = shown = time.monotonic()
    done = 0
    simulated = 0.0
    with _runs(chosen, jobs, partial(run_seed, draw=draw)) as reports:
        for report in reports:
            done += 1
            simulated += report.simulated_seconds
            if report.verdict is not SeedVerdict.HOLDS:
                _fail(report, draw(report.seed), story)
            if story or is_single:
                _show(report, story)
            now = time.monotonic()
            if now - shown > PROGRESS_SECONDS:
                shown = now
                typer.echo(_progress(done, len(chosen), simulated, now - began), err=True)
            if budget is not None and now - began > budget:
                break
    typer.echo(_progress(done, len(chosen), simulated, time.monotonic() - began))
    typer.echo("all promises held")


def _bug_of(
    name: str | None, *, nodes: int, has_transactions: bool, has_groups: bool, is_secure: bool
) -> AnyBug | None:
    from riverrun.simulation.planted.access_bugs import AccessBug
    from riverrun.simulation.planted.cluster_bugs import ClusterBug
    from riverrun.simulation.planted.file_bugs import FileBug
    from riverrun.simulation.planted.group_bugs import GroupBug
    from riverrun.simulation.planted.transaction_bugs import TransactionBug

    if name is None:
        return None
    bugs: list[AnyBug] = [*FileBug] if nodes == 1 else [*ClusterBug]
    bugs += [*TransactionBug] if has_transactions else []
    bugs += [*GroupBug] if has_groups else []
    bugs += [*AccessBug] if is_secure else []
    known = "\n".join(f"  {each.name.lower().replace('_', '-')}: {each.value}" for each in bugs)
    if name == "?":
        typer.echo(known)
        raise typer.Exit
    try:
        return next(each for each in bugs if each.name == name.upper().replace("-", "_"))
    except StopIteration:
        raise typer.BadParameter(f"there is no bug {name}; known bugs:\n{known}") from None


def _fix_order() -> None:
    """Execute the command again with fixed hashes and addresses.

    Sets iterate in the order of hashes, and the hash of an object is its address. Our own code
    never iterates a set, but client libraries do.
    """
    is_fixed = os.environ.get("PYTHONHASHSEED") == HASH_SEED
    if _fix_addresses() or not is_fixed:
        environment = {**os.environ, "PYTHONHASHSEED": HASH_SEED}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _fix_addresses() -> bool:
    """Disable address randomization for executed programs; return whether this changed it."""
    if sys.platform != "linux":
        return False
    import ctypes

    personality = ctypes.CDLL(None).personality
    known = personality(ASK_PERSONALITY)
    if known == -1 or known & NO_RANDOM_ADDRESSES:
        return False
    return bool(personality(known | NO_RANDOM_ADDRESSES) != -1)


def _parse_seeds(seed: int | None, seeds: str | None) -> range:
    if seed is not None:
        return range(seed, seed + 1)
    first, _, last = (seeds or SEEDS_DEFAULT).partition("..")
    try:
        chosen = range(int(first), int(last or first) + 1)
    except ValueError:
        raise typer.BadParameter("expected a range of seeds, such as 1..100") from None
    if not chosen:
        raise typer.BadParameter("the range of seeds is empty")
    return chosen


@contextmanager
def _runs(
    seeds: range, jobs: int, run_one: Callable[[int], SimulationReport]
) -> Iterator[Iterator[SimulationReport]]:
    """Yield the reports of the seeds as they arrive; pending seeds are cancelled on exit."""
    if jobs == 1:
        yield (run_one(seed) for seed in seeds)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))

    def reports() -> Iterator[SimulationReport]:
        waiting: set[Future[SimulationReport]] = set()
        for seed in seeds:
            waiting.add(pool.submit(run_one, seed))
            if len(waiting) > jobs:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from sorted((f.result() for f in done), key=lambda report: report.seed)
        for future in waiting:
            yield future.result()

    try:
        yield reports()
    finally:
        pool.shutdown(cancel_futures=True)


def _fail(report: SimulationReport, plan: AnyPlan, story: bool) -> None:
    from riverrun.simulation.report import describe, describe_failure, run_any, shrink_plan

    typer.echo(f"seed {report.seed} failed: {report.message}", err=True)
    typer.echo("shrinking the schedule of faults ...", err=True)
    smallest = shrink_plan(plan, report.verdict)
    again = describe(run_any(smallest))
    for line in describe_failure(again, schedule=smallest.faults, whole_story=story):
        typer.echo(line)
    raise typer.Exit(int(report.verdict))


def _show(report: SimulationReport, story: bool) -> None:
    if story:
        for line in report.story:
            typer.echo(line)
    typer.echo(
        f"seed {report.seed}: fingerprint {report.fingerprint}, {report.faults} faults, "
        f"{report.acknowledged} acknowledged, {report.reads} reads, {report.commits} commits, "
        f"{report.transactions} transactions, "
        f"{report.simulated_seconds:.1f} s simulated in {report.wall_seconds:.1f} s"
    )


def _progress(done: int, total: int, simulated: float, wall: float) -> str:
    rate = simulated / wall if wall else 0.0
    return (
        f"{done}/{total} seeds, {simulated:.0f} s simulated in {wall:.0f} s ({rate:.0f} a second)"
    )
