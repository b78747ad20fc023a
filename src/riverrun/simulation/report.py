"""Runs seeds and reports their outcomes for ``riverrun simulate``."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from riverrun.simulation.failures import LivenessViolation, SafetyViolation, SimulationFailure
from riverrun.simulation.faults.schedule import Fault, write_schedule
from riverrun.simulation.faults.shrinker import shrink
from riverrun.simulation.planted.access_bugs import AccessBug
from riverrun.simulation.planted.cluster_bugs import ClusterBug
from riverrun.simulation.planted.file_bugs import FileBug
from riverrun.simulation.planted.group_bugs import GroupBug
from riverrun.simulation.planted.transaction_bugs import TransactionBug
from riverrun.simulation.workloads.cluster_scenario import run_cluster
from riverrun.simulation.workloads.node_scenario import run
from riverrun.simulation.workloads.plans import (
    AnyPlan,
    ClusterPlan,
    NodePlan,
    RunOutcome,
    draw_cluster_plan,
    draw_node_plan,
)

STORY_LINES = 60
TURNING_POINTS = ("settings ", "fault ", "loses power", "killed", "sync fails", "faults stop")


class SeedVerdict(IntEnum):
    """Verdict on one seed; the value is the exit code of the command."""

    HOLDS = 0
    UNSAFE = 10
    STUCK = 11
    CRASHED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """The outcome of one seed, small enough to pass between processes."""

    seed: int
    nodes: int
    has_moves: bool
    has_transactions: bool
    has_groups: bool
    is_secure: bool
    verdict: SeedVerdict
    message: str
    fingerprint: str
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int
    transactions: int
    faults: int
    story: tuple[str, ...]


AnyBug = FileBug | ClusterBug | TransactionBug | GroupBug | AccessBug


def draw_any(
    seed: int,
    *,
    nodes: int = 1,
    faults: Sequence[Fault] | None = None,
    has_moves: bool = False,
    has_transactions: bool = False,
    has_groups: bool = False,
    is_secure: bool = False,
    bug: AnyBug | None = None,
) -> AnyPlan:
    """Draw the plan of a seed; ``faults`` replaces its schedule."""
    plan: AnyPlan
    if nodes == 1:
        assert bug is None or isinstance(bug, FileBug), f"{bug} is a bug of clusters"
        plan = draw_node_plan(seed, bug=bug)
    else:
        assert not isinstance(bug, FileBug), f"{bug} is a bug of a single node"
        plan = draw_cluster_plan(
            seed,
            nodes,
            has_moves=has_moves,
            has_transactions=has_transactions,
            has_groups=has_groups,
            is_secure=is_secure,
            bug=bug,
        )
    if faults is not None:
        plan = dataclasses.replace(plan, faults=tuple(faults))
    return plan


def run_seed(seed: int, *, draw: Callable[[int], AnyPlan] = draw_any) -> SimulationReport:
    """Draw the plan of a seed and run it."""
    return describe(run_any(draw(seed)))


def run_any(plan: AnyPlan) -> RunOutcome:
    outcome = run(plan) if isinstance(plan, NodePlan) else run_cluster(plan)
    gc.collect()  # collect the world now, not in the middle of the next run
    return outcome


def describe(outcome: RunOutcome) -> SimulationReport:
    failure, plan = outcome.failure, outcome.plan
    return SimulationReport(
        seed=outcome.plan.seed,
        nodes=1 if isinstance(outcome.plan, NodePlan) else outcome.plan.nodes,
        has_moves=isinstance(plan, ClusterPlan) and plan.has_moves,
        has_transactions=isinstance(plan, ClusterPlan) and plan.has_transactions,
        has_groups=isinstance(plan, ClusterPlan) and plan.has_groups,
        is_secure=isinstance(plan, ClusterPlan) and plan.is_secure,
        verdict=verdict_of(failure),
        message="" if failure is None else f"{type(failure).__name__}: {failure}",
        fingerprint=outcome.fingerprint,
        simulated_seconds=outcome.simulated_seconds,
        wall_seconds=outcome.wall_seconds,
        acknowledged=outcome.acknowledged,
        reads=outcome.reads,
        commits=outcome.commits,
        transactions=outcome.transactions,
        faults=len(outcome.plan.faults),
        story=tuple(outcome.story),
    )


def verdict_of(failure: SimulationFailure | None) -> SeedVerdict:
    match failure:
        case None:
            return SeedVerdict.HOLDS
        case SafetyViolation():
            return SeedVerdict.UNSAFE
        case LivenessViolation():
            return SeedVerdict.STUCK
        case _:
            return SeedVerdict.CRASHED


def shrink_plan(plan: AnyPlan, verdict: SeedVerdict, *, runs_max: int = 60) -> AnyPlan:
    """The same plan with the fewest faults that still give the same verdict."""

    def fails(faults: Sequence[Fault]) -> bool:
        return (
            verdict_of(run_any(dataclasses.replace(plan, faults=tuple(faults))).failure) is verdict
        )

    return dataclasses.replace(plan, faults=shrink(plan.faults, fails, runs_max=runs_max))


def describe_failure(
    report: SimulationReport, *, schedule: Sequence[Fault], whole_story: bool
) -> list[str]:
    """Describe a failure: message, story, smallest schedule and the command to repeat it."""
    story = list(report.story)
    lines = [f"seed {report.seed} failed: {report.message}", "", "The story:"]
    if len(story) > STORY_LINES and not whole_story:
        early, story = story[:-STORY_LINES], story[-STORY_LINES:]
        telling = [line for line in early if any(word in line for word in TURNING_POINTS)]
        lines += [f"  {line}" for line in telling]
        lines.append(f"  ... ({len(early) - len(telling)} lines omitted; --story shows them)")
    lines += [f"  {line}" for line in story]
    written = write_schedule(schedule)
    lines += ["", f"The smallest schedule found ({len(schedule)} faults):", f"  {written}"]
    which = f"--seed {report.seed}" + (f" --nodes {report.nodes}" if report.nodes > 1 else "")
    which += " --moves" if report.has_moves else ""
    which += " --transactions" if report.has_transactions else ""
    which += " --groups" if report.has_groups else ""
    which += " --secure" if report.is_secure else ""
    lines += ["", f"To repeat: riverrun simulate {which} --faults '{written}' --story"]
    return lines
