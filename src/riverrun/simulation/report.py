"""Runs seeds and says what came of them: the part of ``riverrun simulate`` that does the work."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from riverrun.simulation.failures import LivenessViolation, SafetyViolation, SimulationFailure
from riverrun.simulation.faults.schedule import Fault, write_schedule
from riverrun.simulation.faults.shrinker import shrink
from riverrun.simulation.planted.cluster_bugs import ClusterBug
from riverrun.simulation.planted.file_bugs import FileBug
from riverrun.simulation.workloads.cluster_scenario import run_cluster
from riverrun.simulation.workloads.node_scenario import run
from riverrun.simulation.workloads.plans import (
    AnyPlan,
    NodePlan,
    RunOutcome,
    draw_cluster_plan,
    draw_node_plan,
)

STORY_LINES = 60
TURNING_POINTS = ("settings ", "fault ", "loses power", "killed", "sync fails", "faults stop")


class SeedVerdict(IntEnum):
    """Exit codes of the command."""

    HOLDS = 0
    UNSAFE = 10
    STUCK = 11
    CRASHED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """One seed's outcome, small enough to travel between processes."""

    seed: int
    nodes: int
    verdict: SeedVerdict
    message: str
    fingerprint: str
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int
    faults: int
    story: tuple[str, ...]


AnyBug = FileBug | ClusterBug


def draw_any(
    seed: int,
    *,
    nodes: int = 1,
    faults: Sequence[Fault] | None = None,
    bug: AnyBug | None = None,
) -> AnyPlan:
    """The plan of a seed, with its own schedule of faults or another."""
    plan: AnyPlan
    if nodes == 1:
        assert not isinstance(bug, ClusterBug), f"{bug} needs several nodes"
        plan = draw_node_plan(seed, bug=bug)
    else:
        assert not isinstance(bug, FileBug), f"{bug} is a bug of one node"
        plan = draw_cluster_plan(seed, nodes, bug=bug)
    if faults is not None:
        plan = dataclasses.replace(plan, faults=tuple(faults))
    return plan


def run_seed(
    seed: int,
    *,
    nodes: int = 1,
    faults: Sequence[Fault] | None = None,
    bug: AnyBug | None = None,
) -> SimulationReport:
    """Draw the plan of a seed and run it, with its own schedule of faults or another."""
    return describe(run_any(draw_any(seed, nodes=nodes, faults=faults, bug=bug)))


def run_any(plan: AnyPlan) -> RunOutcome:
    outcome = run(plan) if isinstance(plan, NodePlan) else run_cluster(plan)
    gc.collect()  # what a world leaves behind goes now, not in the middle of the next one
    return outcome


def describe(outcome: RunOutcome) -> SimulationReport:
    failure = outcome.failure
    return SimulationReport(
        seed=outcome.plan.seed,
        nodes=1 if isinstance(outcome.plan, NodePlan) else outcome.plan.nodes,
        verdict=judge(failure),
        message="" if failure is None else f"{type(failure).__name__}: {failure}",
        fingerprint=outcome.fingerprint,
        simulated_seconds=outcome.simulated_seconds,
        wall_seconds=outcome.wall_seconds,
        acknowledged=outcome.acknowledged,
        reads=outcome.reads,
        commits=outcome.commits,
        faults=len(outcome.plan.faults),
        story=tuple(outcome.story),
    )


def judge(failure: SimulationFailure | None) -> SeedVerdict:
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
    """The same plan with the fewest faults that still end in the same verdict."""

    def fails(faults: Sequence[Fault]) -> bool:
        return judge(run_any(dataclasses.replace(plan, faults=tuple(faults))).failure) is verdict

    return dataclasses.replace(plan, faults=shrink(plan.faults, fails, runs_max=runs_max))


def tell_failure(
    report: SimulationReport, *, schedule: Sequence[Fault], whole_story: bool
) -> list[str]:
    """What a person needs to see of a failure: what, in which story, and how to repeat it."""
    story = list(report.story)
    lines = [f"seed {report.seed} failed: {report.message}", "", "The story:"]
    if len(story) > STORY_LINES and not whole_story:
        early, story = story[:-STORY_LINES], story[-STORY_LINES:]
        telling = [line for line in early if any(word in line for word in TURNING_POINTS)]
        lines += [f"  {line}" for line in telling]
        lines.append(f"  ... ({len(early) - len(telling)} other lines before; --story shows them)")
    lines += [f"  {line}" for line in story]
    written = write_schedule(schedule)
    lines += ["", f"The smallest schedule found ({len(schedule)} faults):", f"  {written}"]
    which = f"--seed {report.seed}" + (f" --nodes {report.nodes}" if report.nodes > 1 else "")
    lines += ["", f"Again: riverrun simulate {which} --faults '{written}' --story"]
    return lines
