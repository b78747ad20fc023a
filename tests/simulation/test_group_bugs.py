"""The simulation finds every planted bug of groups of the consumer protocol.

Each bug has a schedule of faults that reveals it. The correct cluster must survive the same faults.
"""

import dataclasses

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.group_bugs import GroupBug
from riverrun.simulation.report import SeedVerdict, describe, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, draw_cluster_plan

SEEDS = range(1, 11)


def slow_for_a_moment(client: str, start: float) -> str:
    """Some requests travel for seconds, and arrive after their retries on another connection."""
    times = (start + 1.1 * number for number in range(9))
    return " ".join(f"slow-link@{at:g}+0.3:{client}|group-coordinator=6000" for at in times)


FAULTS = {
    GroupBug.PARTITION_IS_GIVEN_EARLY: "",
    # Clients reach the coordinator, which cannot commit. Then another one takes over.
    GroupBug.EPOCH_IS_ANSWERED_EARLY: (
        "partition@1.5+3.5:group-coordinator|node-1,node-2,node-3 "
        "partition@6+3.5:group-coordinator|node-1,node-2,node-3"
    ),
    # Longer than a session, and shorter than clients repeat a request.
    GroupBug.FENCED_COMMIT_IS_ACCEPTED: (
        "pause-client@1+7.2:worker-1 pause-client@2+7.2:mixer-1 pause-client@3+7.2:worker-3"
    ),
    GroupBug.TARGET_IS_LOST_ON_FAILOVER: (
        "kill@1+0.4:group-coordinator kill@2.5+0.4:group-coordinator kill@4+0.4:group-coordinator"
    ),
    GroupBug.LATE_MEMBER_REQUEST_IS_ACCEPTED: " ".join(
        (
            slow_for_a_moment("worker-1", 0.5),
            slow_for_a_moment("worker-2", 0.7),
            slow_for_a_moment("worker-3", 0.9),
            slow_for_a_moment("mixer-1", 1.1),
        )
    ),
}


def plan_for(bug: GroupBug, seed: int) -> ClusterPlan:
    plan = draw_cluster_plan(seed, 3, has_groups=True, bug=bug)
    return dataclasses.replace(
        plan,
        settings={**plan.settings, "log.flush.before.ack": "true"},
        faults=parse_schedule(FAULTS[bug]),
        faulty_seconds=10.0,
        forms_under_faults=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(GroupBug), ids=lambda bug: bug.name)
def test_planted_bug_is_found_and_the_correct_cluster_passes(bug: GroupBug) -> None:
    for seed in SEEDS:
        plan = plan_for(bug, seed)
        if describe(run_any(plan)).verdict is SeedVerdict.UNSAFE:
            sound = describe(run_any(dataclasses.replace(plan, bug=None)))
            assert not sound.verdict, "\n".join([f"seed {seed}: {sound.message}", *sound.story])
            return
    raise AssertionError(f"no run found the bug: {bug.value}")
