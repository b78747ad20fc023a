"""One unmodified node with aiokafka clients in the simulated world.

At least ``SEEDS_MIN`` random seeds run, and more until ``RIVERRUN_SIMULATION_SECONDS`` (default 60)
are used.
"""

import dataclasses
import gc
import os
import re
import subprocess
import sys
import time

import pytest

from riverrun.simulation.failures import LivenessViolation
from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.report import (
    SeedVerdict,
    describe,
    describe_failure,
    run_any,
    run_seed,
    shrink_plan,
    verdict_of,
)
from riverrun.simulation.workloads.node_scenario import run
from riverrun.simulation.workloads.plans import NodePlan, RunOutcome, draw_node_plan

BUDGET_SECONDS = float(os.environ.get("RIVERRUN_SIMULATION_SECONDS", "60"))
SEEDS_MIN = 20
COMMAND = [sys.executable, "-c", "from riverrun.cli.main import main; main()", "simulate"]


def simulate(*arguments: str, hash_seed: str = "1") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )


def plan_with(seed: int, faults: str, **changes: str) -> NodePlan:
    """The plan of a seed with these faults and settings."""
    plan = draw_node_plan(seed)
    settings = {**plan.settings, **{name.replace("_", "."): v for name, v in changes.items()}}
    return dataclasses.replace(plan, faults=parse_schedule(faults), settings=settings)


def expect_no_failure(outcome: RunOutcome) -> None:
    assert outcome.failure is None, "\n".join(
        describe_failure(describe(outcome), schedule=outcome.plan.faults, whole_story=False)
    )


def test_plan_depends_on_its_seed() -> None:
    assert draw_node_plan(1) == draw_node_plan(1) != draw_node_plan(2)


def test_clients_of_one_node_make_progress_without_faults() -> None:
    outcome = run(plan_with(1, ""))
    expect_no_failure(outcome)
    assert outcome.acknowledged > 50
    assert outcome.commits > 5
    assert outcome.reads > outcome.acknowledged


def test_same_seed_gives_the_same_fingerprint() -> None:
    first, second = run_seed(3), run_seed(3)
    assert first.fingerprint == second.fingerprint
    assert first.acknowledged == second.acknowledged > 0
    assert run_seed(4).fingerprint != first.fingerprint


def test_fingerprint_does_not_depend_on_the_hash_seed() -> None:
    runs = [simulate("--seed", "3", hash_seed=hash_seed) for hash_seed in ("0", "7")]
    assert [done.returncode for done in runs] == [0, 0], runs[0].stdout
    prints = [re.findall(r"fingerprint (\w+)", done.stdout) for done in runs]
    assert prints[0] == prints[1] != []


@pytest.mark.parametrize(
    "faults",
    [
        "kill@1+0.5:broker kill@3+0.2:broker",
        "power-loss@2+0.5:broker power-loss@4+1:broker",
        "terminate@2+0.5:broker power-loss@4+0.5:broker",
        "disk-full@1+2:broker=500",
        "sync-error@2+1:broker=1 power-loss@4+1:broker",
        "write-error@2+1:broker=1",
        "slow-disk@1+3:broker=100 pause@3+2:broker",
        "partition@1+3:writer-1 cut-responses@2+2:reader-1 cut-requests@2+2:reader-2",
        "reset@1+0:writer-1 reset@1.5+0:writer-1 slow-link@2+2:reader-1=200",
        "clock-jump@1+0:broker=-3600 clock-jump@3+0:broker=7200",
        "kill-client@1+1:reader-1 pause-client@2+7:reader-2 evict@3+0:broker",
    ],
)
@pytest.mark.parametrize("synced", ["true", "false"])
def test_node_survives_each_kind_of_fault(faults: str, synced: str) -> None:
    outcome = run(plan_with(6, faults, log_flush_before_ack=synced))
    gc.collect()
    expect_no_failure(outcome)


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        (24, "power-loss@4+1.5:broker kill@5.8+0.5:broker kill@6.6+0.2:broker"),
        (7, "power-loss@3.1+0.5:broker kill@3.8+0.5:broker kill@4.6+0.2:broker"),
    ],
)
def test_producer_whose_acknowledged_batches_were_lost_makes_progress(
    seed: int, faults: str
) -> None:
    """Its next batch arrives before the restarted node leads. See RefusedProducers."""
    outcome = run(plan_with(seed, faults, log_flush_before_ack="false"))
    gc.collect()
    expect_no_failure(outcome)


def test_node_that_restarts_with_a_full_disk_serves_when_there_is_space() -> None:
    faults = "disk-full@1.9+1.996:broker=2898 kill-at-operation@2.6+0.5:broker=18 "
    faults += "disk-full@5.3+0.5:broker=456"
    done = simulate("--seed", "212", "--faults", faults)
    assert done.returncode == 0, done.stdout


@pytest.mark.timeout(BUDGET_SECONDS + 600)  # the budget, and time to shrink a failure
def test_promises_hold_under_random_faults() -> None:
    deadline = time.monotonic() + BUDGET_SECONDS
    seed = 0
    while seed < SEEDS_MIN or time.monotonic() < deadline:
        seed += 1
        plan = draw_node_plan(seed)
        outcome = run(plan)
        gc.collect()
        if outcome.failure is not None:
            smallest = shrink_plan(plan, verdict_of(outcome.failure))
            expect_no_failure(run_any(smallest))
            expect_no_failure(outcome)


def test_verdicts_have_distinct_exit_codes() -> None:
    assert verdict_of(None) is SeedVerdict.HOLDS
    assert verdict_of(LivenessViolation("stuck")) is SeedVerdict.STUCK
    assert len({int(verdict) for verdict in SeedVerdict}) == len(SeedVerdict)
