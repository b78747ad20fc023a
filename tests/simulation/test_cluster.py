"""Simulated clusters of the unchanged broker under faults.

How many seeds run is a matter of time: ``RIVERRUN_SIMULATION_SECONDS``, one minute by default, is
shared by clusters of several sizes.
"""

import dataclasses
import os
import subprocess

import pytest

from riverrun.server.quorum.rejoining import Rejoining
from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.report import describe, run_any, tell_failure
from riverrun.simulation.workloads.plans import ClusterPlan, RunOutcome, draw_cluster_plan
from tests.processes import executable

BUDGET_SECONDS = float(os.environ.get("RIVERRUN_SIMULATION_SECONDS", "60"))
SHARES = ((3, 0.6), (4, 0.2), (5, 0.2))

SURVIVED = {
    "the-controller-killed": "kill@1+1:controller kill@4+1:controller",
    "the-controller-paused": "pause@1+4:controller",
    "the-controller-cut-off": "partition@1+4:controller",
    "the-controller-not-heard": "cut-requests@1+4:controller",
    "the-controller-deaf": "cut-responses@1+4:controller",
    "the-leader-killed": "kill@1+1:leader kill@4+1:leader",
    "the-leader-paused": "pause@1+4:leader",
    "the-leader-cut-off": "partition@1+4:leader",
    "a-follower-cut-off-from-its-leader": "partition@1+4:leader|follower",
    "a-follower-slow": "slow-link@1+4:leader|follower=300",
    "each-node-killed": "kill@1+1:node-1 kill@3+1:node-2 kill@5+1:node-3",
    "each-node-stopped": "terminate@1+1:node-1 terminate@3.5+1:node-2 terminate@6+1:node-3",
    "each-node-without-power": "power-loss@1+1:node-1 power-loss@4+1:node-2 power-loss@7+1:node-3",
    "two-killed": "kill@1+4:node-1,node-2",
    "all-killed": "kill@2+1:node-1,node-2,node-3",
    "all-stopped": "terminate@2+1:node-1,node-2,node-3",
    "all-without-power": "power-loss@2+1:node-1,node-2,node-3",
    "a-disk-wiped": "wipe-disk@2+1:node-2",
    "the-leaders-disk-wiped": "wipe-disk@2+1:leader",
    "a-metadata-log-cut-short": "lost-tail@2+1:node-3=500",
    "clocks-jump": "clock-jump@1+0:node-1=3600 clock-jump@2+0:node-2=-3600 kill@3+1:controller",
    "slow-syncs": "slow-disk@1+4:controller=100",
    "the-controllers-disk-full": "disk-full@1+3:controller=300",
    "the-leaders-disk-full": "disk-full@1+3:leader=300",
    "a-sync-fails": "sync-error@1+2:leader=1",
    "the-leader-killed-while-a-follower-catches-up": "kill@1+2:follower kill@3.2+1:leader",
    "nobody-sees-anybody": "partition@1+4:node-1|node-2,node-3 partition@1+4:node-2|node-3",
    "a-storm": " ".join(f"kill@{1 + n * 0.7:g}+0.5:node-{n % 3 + 1}" for n in range(9)),
}


def plan_with(seed: int, faults: str, nodes: int = 3, **changes: str) -> ClusterPlan:
    """The plan of a seed with other faults and some settings changed."""
    plan = draw_cluster_plan(seed, nodes)
    settings = {**plan.settings, **{name.replace("_", "."): v for name, v in changes.items()}}
    return dataclasses.replace(
        plan,
        faults=parse_schedule(faults),
        settings=settings,
        faulty_seconds=10.0,
        forms_under_faults=False,
    )


def expect_no_failure(outcome: RunOutcome) -> None:
    assert outcome.failure is None, "\n".join(
        tell_failure(describe(outcome), schedule=outcome.plan.faults, whole_story=False)
    )


def test_a_cluster_without_faults_gets_work_done() -> None:
    outcome = run_any(plan_with(1, ""))
    expect_no_failure(outcome)
    assert outcome.acknowledged > 50
    assert outcome.commits > 5
    assert outcome.reads > outcome.acknowledged


def test_a_cluster_replays() -> None:
    first, second = (run_any(plan_with(2, "kill@1+1:controller")) for _ in range(2))
    expect_no_failure(first)
    assert first.fingerprint == second.fingerprint


def test_one_node_is_a_cluster_too() -> None:
    expect_no_failure(run_any(plan_with(3, "kill@1+1:node-1 power-loss@3+1:node-1", nodes=1)))


@pytest.mark.parametrize("name", list(SURVIVED))
def test_it_survives(name: str) -> None:
    synced = "true" if len(name) % 2 else "false"
    expect_no_failure(run_any(plan_with(4, SURVIVED[name], log_flush_before_ack=synced)))


@pytest.mark.timeout(BUDGET_SECONDS + 900)  # the budget, and time to make a failure smaller
@pytest.mark.parametrize(("nodes", "share"), SHARES)
def test_every_promise_of_a_cluster_holds_under_drawn_faults(nodes: int, share: float) -> None:
    """By the command, whose seeds are the same runs everywhere: one that fails is found again."""
    hold(f"--nodes={nodes}", "--seeds=1..10000", f"--budget={BUDGET_SECONDS * share}")


def hold(*options: str) -> None:
    command = [executable(), "simulate", *options]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, f"{told.stdout}\n{told.stderr[-2000:]}"
    assert "everything held" in told.stdout


def test_a_replica_whose_epochs_rot_is_made_whole() -> None:
    """No checksum covers the leader epoch of a batch: the leader is asked for one that it cannot
    know."""
    faults = parse_schedule("bit-rot@0.5+0.5:node-3=65338")
    expect_no_failure(run_any(dataclasses.replace(draw_cluster_plan(3293, 3), faults=faults)))


def test_a_disk_that_fails_again_while_the_node_stops_for_it_is_no_crash() -> None:
    hold("--nodes=3", "--seed=5066", "--faults=sync-error@2.6+0.5:node-3=2")


def test_logs_of_topics_that_a_new_leader_does_not_call_committed_yet_are_kept() -> None:
    faults = "power-loss@2+2.881:node-3 power-loss@4.1+0.5:other-follower "
    hold("--nodes=3", "--seed=5860", f"--faults={faults}power-loss@4.5+2.72:controller")


def test_a_topic_may_come_when_nobody_waits_for_it_any_more() -> None:
    faults = "write-error@8.9+0.5:node-1=3 cut-responses@9.5+1.635:node-1|node-2 "
    faults += "cut-responses@11.4+2.266:node-3|node-1,node-2"
    hold("--nodes=3", "--seed=5389", f"--faults={faults}")


def test_old_records_of_a_reader_that_slept_do_not_turn_its_group_back() -> None:
    faults = "pause-client@0.8+7.346:reader-2 slow-link@2.7+0.5:node-2|node-1,node-3=43 "
    faults += "kill@3.7+0.5:node-1 power-loss@5.7+1.648:node-1,node-2,node-3"
    hold("--nodes=3", "--seed=5098", f"--faults={faults}")


def test_a_wiped_voter_that_stops_on_its_way_back_votes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = parse_schedule(
        "wipe-disk@0.666+2.836:node-1 terminate@2.568+2.742:node-3 "
        "cut-responses@4.127+2.443:node-1|node-2,node-3 terminate@5.852+0.117:node-1"
    )
    plan = dataclasses.replace(draw_cluster_plan(86, 3), faults=faults)
    expect_no_failure(run_any(plan))
    # And it is the intention on the disk that brings it back.
    monkeypatch.setattr(Rejoining, "intend", lambda _: None)
    assert run_any(plan).failure is not None, "it comes back by itself: the schedule proves nothing"
