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

SEEDS = range(1, 61)
ALL = "node-1,node-2,node-3"
FOLLOWERS = "follower,other-follower"


def repeated(faults: str, *delays: float) -> str:
    """The same faults at several times."""
    return " ".join(_delayed(faults, delay) for delay in delays)


def _delayed(faults: str, delay: float) -> str:
    return re.sub(r"@([0-9.]+)\+", lambda found: f"@{float(found[1]) + delay:g}+", faults)


FAULTS = {
    # Two isolated candidates request the vote of a third node at the same time.
    ClusterBug.VOTES_TWICE: (
        "partition@1+8.5:node-1|node-3 slow-link@1.2+8:node-2|node-1,node-3=150 "
        + repeated("partition@1.5+1.4:node-2|node-1,node-3", 0, 2, 4, 6)
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
    plan = draw_cluster_plan(seed, 3, bug=bug)
    producers = tuple(
        dataclasses.replace(
            plan.producers[0], name=name, pause_seconds_max=0.02, filler_bytes_max=10
        )
        for name in ("writer-1", "writer-2")
    )
    return dataclasses.replace(
        plan,
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


MOVES = {
    # The old leader leaves, and the new one has nothing. No fault is necessary.
    ClusterBug.NEW_REPLICA_JOINS_EMPTY: "",
    ClusterBug.REMOVED_REPLICA_STAYS: "",
    ClusterBug.PLAN_FORGETS_ITS_THROTTLE: "kill@3+1:controller",
    ClusterBug.PLAN_WAITS_FOR_A_LOST_MOVE: "kill@3+1:controller",
    # Slow links, so that reassignments last until they get another target and a cancel.
    ClusterBug.CANCEL_KEEPS_THE_FIRST_TARGET: (
        "slow-link@1+8:node-1|node-2,node-3,node-4=300 slow-link@1+8:node-2|node-3,node-4=200"
    ),
    ClusterBug.NEW_REPLICA_IS_NOT_VERIFIED: "",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(MOVES), ids=lambda bug: bug.name)
def test_planted_bug_of_reassignment_is_found_and_the_correct_cluster_passes(
    bug: ClusterBug,
) -> None:
    for seed in SEEDS:
        plan = dataclasses.replace(
            draw_cluster_plan(seed, 4, has_moves=True, bug=bug),
            faults=parse_schedule(MOVES[bug]),
            plan_share=0.3 if bug.name.startswith("PLAN") else 0.0,
            balance_mode=None,
            faulty_seconds=10.0,
            forms_under_faults=False,
        )
        if run_any(plan).failure is not None:
            sound = describe(run_any(dataclasses.replace(plan, bug=None)))
            assert not sound.verdict, "\n".join([f"seed {seed}: {sound.message}", *sound.story])
            return
    raise AssertionError(f"no run found the bug: {bug.value}")
