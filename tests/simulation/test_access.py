"""Logins and access control under faults, and the planted bugs that the simulation must find."""

import dataclasses

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.access_bugs import AccessBug
from riverrun.simulation.report import SeedVerdict, describe, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, draw_cluster_plan

FAILOVERS = (
    "kill@1+1:leader kill@2.5+1:controller partition@4+1.5:controller|node-1,node-2,node-3 "
    "partition@6+1:leader|follower,other-follower power-loss@7.5+0.5:node-1,node-2,node-3"
)


def plan_of(seed: int, faults: str, bug: AccessBug | None = None) -> ClusterPlan:
    plan = draw_cluster_plan(seed, 3, is_secure=True, bug=bug)
    return dataclasses.replace(
        plan,
        faults=parse_schedule(faults),
        faulty_seconds=9.0 if faults else 3.0,
        forms_under_faults=False,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_rights_hold_while_leaders_and_controllers_change(seed: int) -> None:
    outcome = run_any(plan_of(seed, FAILOVERS))
    assert outcome.failure is None
    assert outcome.acknowledged > 0


def test_secure_run_repeats_exactly() -> None:
    plan = draw_cluster_plan(3, 3, is_secure=True)
    assert run_any(plan).fingerprint == run_any(plan).fingerprint


@pytest.mark.parametrize("bug", list(AccessBug), ids=lambda bug: bug.name.lower())
def test_planted_bug_is_found(bug: AccessBug) -> None:
    report = describe(run_any(plan_of(1, "", bug)))
    assert report.verdict is SeedVerdict.UNSAFE, report.message
    assert report.is_secure
