"""Simulated groups of the consumer protocol: one owner, no stale commit, nothing skipped or stuck.

``RIVERRUN_SIMULATION_SECONDS`` (default 60) is the time for random seeds.
"""

import dataclasses
import os
import subprocess

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.report import describe, describe_failure, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, RunOutcome, draw_cluster_plan
from tests.processes import executable

BUDGET_SECONDS = float(os.environ.get("RIVERRUN_SIMULATION_SECONDS", "60"))
SURVIVED = {
    "the-coordinator-killed": (
        "kill@1+1:group-coordinator kill@3+1:group-coordinator kill@5+1:group-coordinator"
    ),
    "the-coordinator-paused": "pause@1+4:group-coordinator pause@6+4:group-coordinator",
    "the-coordinator-cut-off": (
        "partition@1+4:group-coordinator|node-1,node-2,node-3 "
        "partition@6+3:group-coordinator|node-1,node-2,node-3"
    ),
    "the-coordinator-without-responses": (
        "cut-responses@1+3:group-coordinator cut-responses@5+3:group-coordinator"
    ),
    "all-killed": "kill@2+1:node-1,node-2,node-3 kill@5+1:node-1,node-2,node-3",
    "all-without-power": "power-loss@2+1:node-1,node-2,node-3",
    "each-node-stopped": "terminate@1+1:node-1 terminate@3.5+1:node-2 terminate@6+1:node-3",
    "clocks-jump": (
        "clock-jump@1+0:node-1=3600 clock-jump@2+0:node-2=-3600 clock-jump@3+0:node-3=60 "
        "kill@4+1:group-coordinator"
    ),
    "members-paused": (
        "pause-client@1+7:worker-1 pause-client@1.5+7:mixer-1 pause-client@2+7:worker-2"
    ),
    "members-killed": (
        "kill-client@1+0.5:worker-1 kill-client@2+0.5:worker-2 kill-client@3+0.5:mixer-1 "
        "kill-client@4+0.5:worker-3 kill-client@5+0.5:mixer-2 kill-client@6+0.5:worker-2"
    ),
    "the-coordinators-disk-full": (
        "disk-full@1+3:group-coordinator=300 disk-full@6+2:group-coordinator=0"
    ),
}


def plan_with(seed: int, faults: str, *, has_moves: bool = False) -> ClusterPlan:
    plan = draw_cluster_plan(seed, 3, has_groups=True, has_moves=has_moves)
    return dataclasses.replace(
        plan,
        faults=parse_schedule(faults),
        faulty_seconds=10.0,
        forms_under_faults=False,
        settings={**plan.settings, "log.flush.before.ack": "true"},
    )


def expect_no_failure(outcome: RunOutcome) -> None:
    assert outcome.failure is None, "\n".join(
        describe_failure(describe(outcome), schedule=outcome.plan.faults, whole_story=False)
    )


def test_groups_make_progress_without_faults() -> None:
    """Also when they are converted from one protocol to the other."""
    outcome = run_any(plan_with(4, ""))
    expect_no_failure(outcome)
    assert outcome.commits > 100
    story = "\n".join(outcome.story)
    for event in ("group has a target assignment", "group upgraded", "group downgraded"):
        assert event in story


def test_same_plan_with_groups_gives_the_same_fingerprint() -> None:
    first, second = (run_any(plan_with(2, "kill@1+1:group-coordinator")) for _ in range(2))
    expect_no_failure(first)
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("name", list(SURVIVED))
def test_groups_survive(name: str) -> None:
    expect_no_failure(run_any(plan_with(4, SURVIVED[name])))


def test_groups_survive_moves_of_all_partitions() -> None:
    """Also those of __consumer_offsets."""
    faults = "kill@2+1:group-coordinator kill@5+1:leader"
    expect_no_failure(run_any(plan_with(5, faults, has_moves=True)))


@pytest.mark.timeout(BUDGET_SECONDS + 900)  # the budget, and time to shrink a failure
def test_groups_hold_under_random_faults() -> None:
    budget = f"--budget={BUDGET_SECONDS}"
    command = [executable(), "simulate", "--nodes=3", "--groups", "--seeds=1..10000", budget]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert "all promises held" in done.stdout
