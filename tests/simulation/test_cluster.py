"""Simulated clusters of unmodified nodes under faults.

``RIVERRUN_SIMULATION_SECONDS`` (default 60) is the time for random seeds, shared by clusters of
several sizes.
"""

import dataclasses
import os
import subprocess

import pytest

from riverrun.replication.follower.plan import FetchPlan
from riverrun.server.quorum.rejoining import Rejoining
from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.cluster_bugs import losing_batches
from riverrun.simulation.report import describe, describe_failure, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, RunOutcome, draw_cluster_plan
from tests.processes import executable

BUDGET_SECONDS = float(os.environ.get("RIVERRUN_SIMULATION_SECONDS", "60"))
SHARES = ((3, 0.4), (4, 0.2), (5, 0.2))
MOVES_SHARE = 0.2

SURVIVED = {
    "the-controller-killed": "kill@1+1:controller kill@4+1:controller",
    "the-controller-paused": "pause@1+4:controller",
    "the-controller-cut-off": "partition@1+4:controller",
    "the-controller-cannot-send": "cut-requests@1+4:controller",
    "the-controller-cannot-receive": "cut-responses@1+4:controller",
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
    "every-node-isolated": "partition@1+4:node-1|node-2,node-3 partition@1+4:node-2|node-3",
    "moved-and-the-leader-killed": "kill@1+1:leader kill@3+1:leader kill@5+1:leader",
    "moved-and-the-controller-killed": "kill@1+1:controller kill@3+1:controller",
    "moved-and-a-disk-full": "disk-full@1+3:follower=300 disk-full@5+3:other-follower=300",
    "moved-and-nodes-cut-off": "partition@1+3:leader|follower partition@5+3:leader|other-follower",
    "moved-and-each-node-stopped": "terminate@1+1:node-1 terminate@3+1:node-2 terminate@5+1:node-4",
    "moved-and-all-without-power": "power-loss@3+1:node-1,node-2,node-3,node-4",
    "a-storm": " ".join(f"kill@{1 + n * 0.7:g}+0.5:node-{n % 3 + 1}" for n in range(9)),
}


def plan_with(seed: int, faults: str, nodes: int = 3, **changes: str) -> ClusterPlan:
    """The plan of a seed with these faults and settings."""
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
        describe_failure(describe(outcome), schedule=outcome.plan.faults, whole_story=False)
    )


def test_clients_make_progress_without_faults() -> None:
    outcome = run_any(plan_with(1, ""))
    expect_no_failure(outcome)
    assert outcome.acknowledged > 50
    assert outcome.commits > 5
    assert outcome.reads > outcome.acknowledged


def test_same_plan_gives_the_same_fingerprint() -> None:
    first, second = (run_any(plan_with(2, "kill@1+1:controller")) for _ in range(2))
    expect_no_failure(first)
    assert first.fingerprint == second.fingerprint


def test_cluster_of_one_node_survives_faults() -> None:
    expect_no_failure(run_any(plan_with(3, "kill@1+1:node-1 power-loss@3+1:node-1", nodes=1)))


@pytest.mark.parametrize("name", list(SURVIVED))
def test_cluster_survives(name: str) -> None:
    synced = "true" if len(name) % 2 else "false"
    has_moves = name.startswith("moved-")
    plan = plan_with(4, SURVIVED[name], 4 if has_moves else 3, log_flush_before_ack=synced)
    expect_no_failure(run_any(dataclasses.replace(plan, has_moves=has_moves)))


@pytest.mark.timeout(BUDGET_SECONDS + 900)  # the budget, and time to shrink a failure
@pytest.mark.parametrize(("nodes", "share"), SHARES)
def test_promises_hold_under_random_faults_of_a_cluster(nodes: int, share: float) -> None:
    """Run the command, whose seeds give the same runs in every process."""
    hold(f"--nodes={nodes}", "--seeds=1..10000", f"--budget={BUDGET_SECONDS * share}")


@pytest.mark.timeout(BUDGET_SECONDS + 900)
def test_promises_hold_while_partitions_move() -> None:
    budget = f"--budget={BUDGET_SECONDS * MOVES_SHARE}"
    hold("--nodes=4", "--moves", "--seeds=1..10000", budget)


def hold(*options: str) -> None:
    command = [executable(), "simulate", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert "all promises held" in done.stdout


def test_topic_is_created_again_when_too_few_brokers_were_registered() -> None:
    hold("--nodes=3", "--seed=19", "--faults=")


def test_replica_with_a_corrupt_leader_epoch_is_repaired() -> None:
    """No checksum covers the leader epoch of a batch, so the follower sends an unknown epoch."""
    faults = parse_schedule("bit-rot@0.5+0.5:node-3=65338")
    expect_no_failure(run_any(dataclasses.replace(draw_cluster_plan(3293, 3), faults=faults)))


def test_second_sync_error_while_the_node_stops_is_not_a_crash() -> None:
    hold("--nodes=3", "--seed=5066", "--faults=sync-error@2.6+0.5:node-3=2")


def test_logs_of_topics_that_are_not_committed_by_the_new_leader_are_kept() -> None:
    faults = "power-loss@2+2.881:node-3 power-loss@4.1+0.5:other-follower "
    hold("--nodes=3", "--seed=5860", f"--faults={faults}power-loss@4.5+2.72:controller")


def test_topic_may_be_created_after_its_request_timed_out() -> None:
    faults = "write-error@8.9+0.5:node-1=3 cut-responses@9.5+1.635:node-1|node-2 "
    faults += "cut-responses@11.4+2.266:node-3|node-1,node-2"
    hold("--nodes=3", "--seed=5389", f"--faults={faults}")


def test_old_records_of_a_paused_reader_do_not_move_its_group_back() -> None:
    faults = "pause-client@0.8+7.346:reader-2 slow-link@2.7+0.5:node-2|node-1,node-3=43 "
    faults += "kill@3.7+0.5:node-1 power-loss@5.7+1.648:node-1,node-2,node-3"
    hold("--nodes=3", "--seed=5098", f"--faults={faults}")


def test_wiped_voter_that_stops_while_rejoining_votes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = parse_schedule(
        "wipe-disk@0.666+2.836:node-1 terminate@2.568+2.742:node-3 "
        "cut-responses@4.127+2.443:node-1|node-2,node-3 terminate@5.852+0.117:node-1"
    )
    plan = dataclasses.replace(draw_cluster_plan(86, 3), faults=faults)
    expect_no_failure(run_any(plan))
    # Without the stored intention to rejoin it must fail.
    monkeypatch.setattr(Rejoining, "intend", lambda _: None)
    assert run_any(plan).failure is not None, "the node rejoins without its stored intention"


def test_reassignment_to_a_node_that_is_down_is_cancelled() -> None:
    plan = plan_with(1, "kill@1.5+8:node-4", 4, reassignment_stall_timeout_ms="1500")
    outcome = run_any(dataclasses.replace(plan, has_moves=True))
    expect_no_failure(outcome)
    assert any("rolled back" in line and "reason=stalled" in line for line in outcome.story)


def test_new_replica_that_loses_batches_while_it_is_copied_never_joins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FetchPlan, "_append", losing_batches(FetchPlan._append))
    outcome = run_any(dataclasses.replace(plan_with(3, "", 4), has_moves=True))
    expect_no_failure(outcome)
    assert any("copy differs from the leader" in line for line in outcome.story)
    assert any("rolled back" in line and "reason=content" in line for line in outcome.story)


def test_reassignment_to_a_full_disk_is_rolled_back() -> None:
    plan = plan_with(1, "disk-full@1+8:node-4=1500", 4)
    outcome = run_any(dataclasses.replace(plan, has_moves=True))
    expect_no_failure(outcome)
    assert any("rolled back" in line and "reason=disk" in line for line in outcome.story)
