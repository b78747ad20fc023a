"""Runs seeds and says what came of them: the part of ``riverrun simulate`` that does the work."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from riverrun.simulation.checks.checker import LivenessViolation, SafetyViolation
from riverrun.simulation.disks.flaws import Flaw
from riverrun.simulation.failures import SimulationFailure
from riverrun.simulation.faults import Fault, write_schedule
from riverrun.simulation.outcome import AnyPlan, Outcome
from riverrun.simulation.shrink import shrink
from riverrun.simulation.workloads.cluster_flaws import ClusterFlaw
from riverrun.simulation.workloads.cluster_plan import draw_cluster_plan
from riverrun.simulation.workloads.cluster_scenario import run_cluster
from riverrun.simulation.workloads.plan import Plan, draw_plan
from riverrun.simulation.workloads.scenario import run

STORY_LINES = 60
TURNING_POINTS = ("settings ", "fault ", "loses power", "killed", "sync fails", "faults stop")


class Verdict(IntEnum):
    """Exit codes of the command."""

    HOLDS = 0
    UNSAFE = 10
    STUCK = 11
    CRASHED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One seed's outcome, small enough to travel between processes."""

    seed: int
    nodes: int
    verdict: Verdict
    message: str
    fingerprint: str
    simulated_seconds: float
    wall_seconds: float
    acknowledged: int
    reads: int
    commits: int
    faults: int
    story: tuple[str, ...]


AnyFlaw = Flaw | ClusterFlaw


def draw_any(
    seed: int,
    *,
    nodes: int = 1,
    faults: Sequence[Fault] | None = None,
    flaw: AnyFlaw | None = None,
) -> AnyPlan:
    """The plan of a seed, with its own schedule of faults or another."""
    plan: AnyPlan
    if nodes == 1:
        assert not isinstance(flaw, ClusterFlaw), f"{flaw} needs several nodes"
        plan = draw_plan(seed, flaw=flaw)
    else:
        assert not isinstance(flaw, Flaw), f"{flaw} is a flaw of one node"
        plan = draw_cluster_plan(seed, nodes, flaw=flaw)
    if faults is not None:
        plan = dataclasses.replace(plan, faults=tuple(faults))
    return plan


def run_seed(
    seed: int,
    *,
    nodes: int = 1,
    faults: Sequence[Fault] | None = None,
    flaw: AnyFlaw | None = None,
) -> Report:
    """Draw the plan of a seed and run it, with its own schedule of faults or another."""
    return describe(run_any(draw_any(seed, nodes=nodes, faults=faults, flaw=flaw)))


def run_any(plan: AnyPlan) -> Outcome:
    outcome = run(plan) if isinstance(plan, Plan) else run_cluster(plan)
    gc.collect()  # what a world leaves behind goes now, not in the middle of the next one
    return outcome


def describe(outcome: Outcome) -> Report:
    failure = outcome.failure
    return Report(
        seed=outcome.plan.seed,
        nodes=1 if isinstance(outcome.plan, Plan) else outcome.plan.nodes,
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


def judge(failure: SimulationFailure | None) -> Verdict:
    match failure:
        case None:
            return Verdict.HOLDS
        case SafetyViolation():
            return Verdict.UNSAFE
        case LivenessViolation():
            return Verdict.STUCK
        case _:
            return Verdict.CRASHED


def shrink_plan(plan: AnyPlan, verdict: Verdict, *, runs_max: int = 60) -> AnyPlan:
    """The same plan with the fewest faults that still end in the same verdict."""

    def fails(faults: Sequence[Fault]) -> bool:
        return judge(run_any(dataclasses.replace(plan, faults=tuple(faults))).failure) is verdict

    return dataclasses.replace(plan, faults=shrink(plan.faults, fails, runs_max=runs_max))


def tell_failure(report: Report, *, schedule: Sequence[Fault], whole_story: bool) -> list[str]:
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
