"""The simulation finds every planted bug of transactions.

Each bug has a schedule of faults that reveals it. The correct cluster must survive the same faults.
"""

import dataclasses

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.transaction_bugs import TransactionBug
from riverrun.simulation.report import describe, run_any
from riverrun.simulation.workloads.plans import ClusterPlan, draw_cluster_plan

SEEDS = range(1, 31)


def every(seconds: float, fault: str, *, times: int) -> str:
    """The same fault again and again. ``@`` is followed by the delay of the first one."""
    kind, _, rest = fault.partition("@")
    start, _, rest = rest.partition("+")
    return " ".join(f"{kind}@{float(start) + seconds * n:g}+{rest}" for n in range(times))


SLOW_LINKS = "slow-link@1+8:node-1|node-2,node-3=60 slow-link@1+8:node-2|node-3=60"
FAULTS = {
    TransactionBug.MARKERS_ARE_LOST_ON_FAILOVER: every(1.2, "kill@1+0.3:coordinator", times=5),
    TransactionBug.STABLE_OFFSET_IS_IGNORED: "",
    TransactionBug.ZOMBIE_IS_NOT_FENCED: "",
    # A write to the coordinator's log fails, and its state has changed already.
    TransactionBug.EPOCH_IS_BUMPED_BEFORE_IT_IS_DURABLE: every(
        0.35, "write-error@1+0.3:coordinator=1", times=22
    ),
    # Markers are written, and the responses are lost.
    TransactionBug.MARKER_RETRY_HANGS: " ".join(
        (
            SLOW_LINKS,
            every(0.4, "reset@1.3+0:node-1|node-2", times=14),
            every(0.4, "reset@1.4+0:node-2|node-3", times=14),
            every(0.4, "reset@1.5+0:node-1|node-3", times=14),
        )
    ),
    TransactionBug.MARKERS_ARE_NOT_REPEATED: every(1.2, "kill@1+0.5:leader", times=5),
    TransactionBug.ABORTED_LIST_IS_UNSORTED: "",
    TransactionBug.OFFSETS_ARE_VISIBLE_BEFORE_THE_MARKER: every(
        1.5, "kill-client@1+0.3:chain-1", times=5
    ),
    # Some requests travel for seconds and arrive after their retries on another connection. The
    # delay is near the timeout of requests: after more time, a new producer has a new epoch.
    TransactionBug.LATE_REQUEST_IS_ACCEPTED: " ".join(
        (
            every(1.5, "slow-link@0.5+0.3:feeder-1|coordinator=5000", times=6),
            every(1.5, "slow-link@1.25+0.3:feeder-2|coordinator=5000", times=6),
        )
    ),
}


def plan_for(bug: TransactionBug, seed: int) -> ClusterPlan:
    plan = draw_cluster_plan(seed, 3, has_transactions=True, bug=bug)
    # In version 2 a late request is fenced, because each transaction has its own epoch.
    is_old = bug is TransactionBug.LATE_REQUEST_IS_ACCEPTED
    return dataclasses.replace(
        plan,
        transaction_versions=(1,) if is_old else plan.transaction_versions,
        faults=parse_schedule(FAULTS[bug]),
        # With one partition, all transactions have the same coordinator.
        settings={**plan.settings, "transaction.state.log.num.partitions": "1"}
        if is_old
        else plan.settings,
        faulty_seconds=10.0,
        forms_under_faults=False,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(TransactionBug), ids=lambda bug: bug.name)
def test_planted_bug_is_found_and_the_correct_cluster_passes(bug: TransactionBug) -> None:
    for seed in SEEDS:
        plan = plan_for(bug, seed)
        if run_any(plan).failure is not None:
            sound = describe(run_any(dataclasses.replace(plan, bug=None)))
            assert not sound.verdict, "\n".join([f"seed {seed}: {sound.message}", *sound.story])
            return
    raise AssertionError(f"no run found the bug: {bug.value}")
