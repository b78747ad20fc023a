"""The simulation finds every planted bug of a cluster.

Each bug has a schedule of faults that reveals it. The producers write fast, so that there are
always records to lose. The correct cluster must survive the same faults.
"""

import dataclasses
import re

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.cluster_bugs import ClusterBug
from riverrun.simulation.report import describe, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, draw_cluster_plan

SEEDS = range(1, 21)
ALL = "node-1,node-2,node-3"
VOTERS = 5
"""In the search for VOTES_TWICE. More voters stand at the same time more often."""
FOLLOWERS = "follower,other-follower"


def repeated(faults: str, *delays: float) -> str:
    """The same faults at several times."""
    return " ".join(_delayed(faults, delay) for delay in delays)


def _delayed(faults: str, delay: float) -> str:
    return re.sub(r"@([0-9.]+)\+", lambda found: f"@{float(found[1]) + delay:g}+", faults)


def all_links_slow(nodes: int, factor: int) -> str:
    """All links between nodes are slow for nine seconds."""
    names = [f"node-{number}" for number in range(1, nodes + 1)]
    return " ".join(
        f"slow-link@0.5+9:{name}|{','.join(names[place:])}={factor}"
        for place, name in enumerate(names[:-1], start=1)
    )


FAULTS = {
    # Voters that lose their leader stand at the same time. With the same logs each of them can win,
    # and slow links let a request meet a voter that is a candidate of the same epoch.
    ClusterBug.VOTES_TWICE: (
        all_links_slow(VOTERS, 70)
        + " "
        + repeated("kill@1+0.4:controller", *(1.1 * number for number in range(8)))
    ),
    ClusterBug.METADATA_IS_NOT_SYNCED: repeated(f"power-loss@1.5+0.5:{ALL}", 0, 2.5, 5),
    # A follower has truncated acknowledged records when the new leader is killed.
    ClusterBug.TRUNCATES_BY_HIGH_WATERMARK: repeated(
        "slow-link@1+1.6:follower|other-follower=300 kill@1.2+1.5:leader kill@1.6+1.2:leader "
        "kill@1.95+1:leader",
        0,
        4,
    ),
    ClusterBug.ACKS_BEFORE_ISR: repeated(
        f"slow-link@1+1:leader|{FOLLOWERS}=300 kill@1.5+1:leader", 0, 3, 6
    ),
    # An old leader without followers keeps appending, and becomes a follower afterwards.
    ClusterBug.EPOCHS_ARE_NOT_CHECKED: repeated(f"partition@1+3:leader|{FOLLOWERS}", 0, 4.5),
    # Responses to a producer are lost, its retries are duplicates, then the leader is killed.
    ClusterBug.DUPLICATES_ARE_ACKED_AT_ONCE: repeated(
        f"slow-link@1+1.2:leader|{FOLLOWERS}=800 reset@1.1+0:writer-1,writer-2|leader "
        "reset@1.3+0:writer-1,writer-2|leader kill@1.6+1:leader",
        0,
        3,
        6,
    ),
    # A follower restarts without its last records, and the leader is down.
    ClusterBug.NEW_INCARNATION_STAYS_IN_ISR: repeated(
        "power-loss@1+0.5:follower kill@1.02+2:leader", 0, 4.5
    ),
}


def plan_for(bug: ClusterBug, seed: int) -> ClusterPlan:
    nodes = VOTERS if bug is ClusterBug.VOTES_TWICE else 3
    plan = draw_cluster_plan(seed, nodes, bug=bug)
    producers = tuple(
        dataclasses.replace(
            plan.producers[0], name=name, pause_seconds_max=0.02, filler_bytes_max=10
        )
        for name in ("writer-1", "writer-2")
    )
    return dataclasses.replace(
        plan,
        controllers=nodes,
        faults=parse_schedule(FAULTS[bug]),
        faulty_seconds=10.0,
        forms_under_faults=False,
        partitions=1,
        producers=producers,
        settings={
            **plan.settings,
            # Required for records to survive a power loss of all nodes.
            "log.flush.before.ack": str(bug is ClusterBug.METADATA_IS_NOT_SYNCED).lower(),
            "log.flush.interval.messages": "1000",
        },
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(FAULTS), ids=lambda bug: bug.name)
def test_planted_bug_is_found_and_the_correct_cluster_passes(bug: ClusterBug) -> None:
    for seed in SEEDS:
        plan = plan_for(bug, seed)
        if run_any(plan).failure is not None:
            sound = describe(run_any(dataclasses.replace(plan, bug=None)))
            assert not sound.verdict, "\n".join([f"seed {seed}: {sound.message}", *sound.story])
            return
    raise AssertionError(f"no run found the bug: {bug.value}")


SLOW_LINKS = all_links_slow(4, 300)
MOVES = {
    # The old leader leaves, and the new one has nothing. No fault is necessary.
    ClusterBug.NEW_REPLICA_JOINS_EMPTY: "",
    ClusterBug.REMOVED_REPLICA_STAYS: "",
    ClusterBug.PLAN_FORGETS_ITS_THROTTLE: "kill@3+1:controller",
    # Slow links, so that moves wait for others of their plan while requests move their partitions.
    ClusterBug.PLAN_WAITS_FOR_A_LOST_MOVE: SLOW_LINKS,
    # Brokers that do not vote copy slowly, so that reassignments last until they get another target
    # and a cancel. The controller is fast.
    ClusterBug.CANCEL_KEEPS_THE_FIRST_TARGET: (
        "slow-link@1+9:node-4,node-5,node-6|node-1,node-2,node-3=500 "
        "slow-link@1+9:node-4|node-5,node-6=500 slow-link@1+9:node-5|node-6=500"
    ),
    ClusterBug.NEW_REPLICA_IS_NOT_VERIFIED: "",
}
SETTINGS = {
    # The moves of a plan start one after the other.
    ClusterBug.PLAN_WAITS_FOR_A_LOST_MOVE: {"balance.moves.max": "1"},
}


def plan_of_moves_for(bug: ClusterBug, seed: int) -> ClusterPlan:
    nodes = 6 if bug is ClusterBug.CANCEL_KEEPS_THE_FIRST_TARGET else 4
    plan = draw_cluster_plan(seed, nodes, has_moves=True, bug=bug)
    return dataclasses.replace(
        plan,
        faults=parse_schedule(MOVES[bug]),
        settings={**plan.settings, **SETTINGS.get(bug, {})},
        controllers=3,
        plan_share=0.3 if bug.name.startswith("PLAN") else 0.0,
        balance_mode=None,
        faulty_seconds=10.0,
        forms_under_faults=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(MOVES), ids=lambda bug: bug.name)
def test_planted_bug_of_reassignment_is_found_and_the_correct_cluster_passes(
    bug: ClusterBug,
) -> None:
    for seed in SEEDS:
        plan = plan_of_moves_for(bug, seed)
        if run_any(plan).failure is not None:
            sound = describe(run_any(dataclasses.replace(plan, bug=None)))
            assert not sound.verdict, "\n".join([f"seed {seed}: {sound.message}", *sound.story])
            return
    raise AssertionError(f"no run found the bug: {bug.value}")
