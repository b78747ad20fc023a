"""The simulation finds every planted bug of the ``Files`` port."""

from functools import partial

import pytest

from riverrun.simulation.faults.schedule import parse_schedule
from riverrun.simulation.planted.file_bugs import FileBug
from riverrun.simulation.report import SeedVerdict, draw_any, run_seed

SEEDS = range(1, 25)
POWER_CUTS = "power-loss@2+0.3:broker power-loss@3.5+0.3:broker power-loss@5+0.3:broker"
FAILED_SYNC = "sync-error@2+1:broker=1 power-loss@3.2+0.5:broker"
# The faults that reveal each bug.
FAULTS = {
    FileBug.SYNC_IS_SKIPPED: POWER_CUTS,
    FileBug.DIRECTORY_SYNC_IS_SKIPPED: POWER_CUTS,
    FileBug.RENAME_IS_NOT_SYNCED: POWER_CUTS,
    FileBug.FAILED_SYNC_IS_RETRIED: FAILED_SYNC,
    FileBug.FAILED_SYNC_IS_IGNORED: FAILED_SYNC,
    FileBug.SHORT_WRITE_STAYS: (
        "disk-full@1+0.6:broker=300 kill@2+0.3:broker disk-full@3+0.6:broker=300 kill@4+0.3:broker"
    ),
    FileBug.WRITES_ARE_BUFFERED: "kill@2+0.5:broker kill@3+0.5:broker",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", list(FileBug), ids=lambda bug: bug.name)
def test_planted_bug_is_found_and_the_correct_node_passes(bug: FileBug) -> None:
    faults = parse_schedule(FAULTS[bug])
    draw = partial(draw_any, faults=faults, bug=bug)
    for seed in SEEDS:
        if run_seed(seed, draw=draw).verdict is not SeedVerdict.HOLDS:
            sound = run_seed(seed, draw=partial(draw_any, faults=faults))
            assert sound.verdict is SeedVerdict.HOLDS, "\n".join(
                [sound.message, *sound.story[-40:]]
            )
            return
    raise AssertionError(f"{len(SEEDS)} runs did not find the bug: {bug.value}")
