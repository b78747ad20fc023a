"""Planted bugs: the simulation must see each of them, or its silence means nothing."""

import pytest

from riverrun.simulation.disks.flaws import Flaw
from riverrun.simulation.faults import parse_schedule
from riverrun.simulation.report import Verdict, run_seed

SEEDS = range(1, 25)
POWER_CUTS = "power-loss@2+0.3:broker power-loss@3.5+0.3:broker power-loss@5+0.3:broker"
FAILED_SYNC = "sync-error@2+1:broker=1 power-loss@3.2+0.5:broker"
# The faults under which each flaw shows, sooner or later.
FAULTS = {
    Flaw.SYNC_IS_SKIPPED: POWER_CUTS,
    Flaw.DIRECTORY_SYNC_IS_SKIPPED: POWER_CUTS,
    Flaw.RENAME_IS_NOT_SYNCED: POWER_CUTS,
    Flaw.FAILED_SYNC_IS_RETRIED: FAILED_SYNC,
    Flaw.FAILED_SYNC_IS_IGNORED: FAILED_SYNC,
    Flaw.SHORT_WRITE_STAYS: (
        "disk-full@1+0.6:broker=300 kill@2+0.3:broker disk-full@3+0.6:broker=300 kill@4+0.3:broker"
    ),
    Flaw.WRITES_ARE_BUFFERED: "kill@2+0.5:broker kill@3+0.5:broker",
}


@pytest.mark.parametrize("flaw", list(Flaw), ids=lambda flaw: flaw.name)
def test_a_planted_bug_is_caught_and_the_sound_node_passes(flaw: Flaw) -> None:
    faults = parse_schedule(FAULTS[flaw])
    for seed in SEEDS:
        if run_seed(seed, faults=faults, flaw=flaw).verdict is not Verdict.HOLDS:
            sound = run_seed(seed, faults=faults)
            assert sound.verdict is Verdict.HOLDS, "\n".join([sound.message, *sound.story[-40:]])
            return
    raise AssertionError(f"{len(SEEDS)} runs did not show that {flaw.value}")
