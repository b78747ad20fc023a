"""Simulated clusters whose clients use transactions: nothing is torn, lost, doubled or stuck.

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
    "the-coordinator-killed": "kill@1+1:coordinator kill@3+1:coordinator kill@5+1:coordinator",
    "the-coordinator-paused": "pause@1+4:coordinator pause@6+4:coordinator",
    "the-coordinator-cut-off": "partition@1+4:coordinator partition@6+3:coordinator",
    "the-leader-killed": "kill@1+1:leader kill@3+1:leader kill@5+1:leader",
    "all-killed": "kill@2+1:node-1,node-2,node-3 kill@5+1:node-1,node-2,node-3",
    "all-without-power": "power-loss@2+1:node-1,node-2,node-3",
    "each-node-stopped": "terminate@1+1:node-1 terminate@3.5+1:node-2 terminate@6+1:node-3",
    "clocks-jump": (
        "clock-jump@1+0:node-1=3600 clock-jump@2+0:node-2=-3600 clock-jump@3+0:node-3=60 "
        "kill@4+1:coordinator"
    ),
    "clients-paused": (
        "pause-client@1+8:feeder-1 pause-client@1.5+8:chain-1 pause-client@2+7:feeder-2"
    ),
    "clients-killed": (
        "kill-client@1+0.5:feeder-1 kill-client@2+0.5:chain-1 kill-client@3+0.5:feeder-2 "
        "kill-client@4+0.5:chain-2 kill-client@5+0.5:feeder-1"
    ),
    "the-coordinators-disk-full": "disk-full@1+3:coordinator=300 disk-full@6+2:coordinator=0",
}


def plan_with(seed: int, faults: str, *, has_moves: bool = False) -> ClusterPlan:
    plan = draw_cluster_plan(seed, 3, has_transactions=True, has_moves=has_moves)
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


def test_creation_that_timed_out_is_not_repeated_after_a_deletion() -> None:
    """Found by seed 120: the deleted topic existed again."""
    faults = "cut-requests@3.8+2.423:node-3|node-2 power-loss-at-operation@4.4+0.5:coordinator=13"
    plan = draw_cluster_plan(120, 3, has_transactions=True)
    expect_no_failure(run_any(dataclasses.replace(plan, faults=parse_schedule(faults))))


def test_transactional_clients_make_progress_without_faults() -> None:
    outcome = run_any(plan_with(1, ""))
    expect_no_failure(outcome)
    assert outcome.transactions > 50


def test_same_plan_with_transactions_gives_the_same_fingerprint() -> None:
    first, second = (run_any(plan_with(2, "kill@1+1:coordinator")) for _ in range(2))
    expect_no_failure(first)
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize("name", list(SURVIVED))
def test_transactions_survive(name: str) -> None:
    expect_no_failure(run_any(plan_with(4, SURVIVED[name])))


def test_transactions_survive_moves_of_all_partitions() -> None:
    """Also those of __transaction_state and __consumer_offsets."""
    faults = "kill@2+1:coordinator kill@5+1:leader"
    expect_no_failure(run_any(plan_with(5, faults, has_moves=True)))


def test_compacted_transaction_log_is_moved() -> None:
    """Its copies have gaps, so they are not compared batch by batch."""
    plan = draw_cluster_plan(2, 4, has_transactions=True, has_moves=True)
    expect_no_failure(run_any(dataclasses.replace(plan, faulty_seconds=3.0)))


def test_torn_transaction_index_keeps_its_durable_entries() -> None:
    """Power is lost while a part of the index is not synced."""
    faults = parse_schedule("power-loss-at-operation@11.27+1.406:node-1=25")
    plan = draw_cluster_plan(2, 3, has_transactions=True)
    expect_no_failure(run_any(dataclasses.replace(plan, faults=faults)))


def test_producer_changes_to_version_2_while_markers_are_late() -> None:
    """The first transaction of version 2 must not join the one of version 1 before it."""
    faults = parse_schedule(
        "write-error@7.129+0.5:node-3=2 pause-client@7.6+0.837:writer-1 "
        "slow-link@8.138+0.5:coordinator=170 disk-full@8.2+1.864:node-3=815"
    )
    plan = draw_cluster_plan(67, 3, has_transactions=True)
    expect_no_failure(run_any(dataclasses.replace(plan, faults=faults)))


def test_member_that_was_removed_from_its_group_commits_nothing() -> None:
    """The links of both chains are slow for so long that their sessions end."""
    links = [
        f"slow-link@{start + 1.5 * number:g}+0.3:{chain}|node-1,node-2,node-3=5000"
        for chain, start in (("chain-1", 0.5), ("chain-2", 1.25))
        for number in range(6)
    ]
    plan = draw_cluster_plan(4, 3, has_transactions=True)
    plan = dataclasses.replace(
        plan,
        transaction_versions=(1,),
        faults=parse_schedule(" ".join(links)),
        settings={**plan.settings, "transaction.state.log.num.partitions": "1"},
        faulty_seconds=10.0,
        forms_under_faults=False,
    )
    expect_no_failure(run_any(plan))


def test_late_heartbeat_does_not_end_a_new_membership() -> None:
    """It would leave a member without a generation, whose commits no coordinator checks."""
    faults = parse_schedule(
        "cut-responses@0.9+2.339:node-1,node-2|node-3 terminate@5.205+1.799:node-1"
    )
    plan = draw_cluster_plan(159, 3, has_transactions=True)
    expect_no_failure(run_any(dataclasses.replace(plan, faults=faults)))


@pytest.mark.timeout(BUDGET_SECONDS + 900)  # the budget, and time to shrink a failure
def test_transactions_hold_under_random_faults() -> None:
    budget = f"--budget={BUDGET_SECONDS}"
    command = [executable(), "simulate", "--nodes=3", "--transactions", "--seeds=1..10000", budget]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert "all promises held" in done.stdout
