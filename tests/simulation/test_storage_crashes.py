"""Storage under crashes, compared with a model: thousands of appends, kills and power losses."""

import pytest

from riverrun.simulation.failures import SimulationFailure
from riverrun.simulation.isolation import captured_logs
from riverrun.simulation.world import World
from tests.simulation.storage_model import StorageRun

SEEDS = 120


@pytest.mark.parametrize("start", range(0, SEEDS, 20))
def test_recovery_keeps_a_prefix_with_all_durable_batches(start: int) -> None:
    for seed in range(start, start + 20):
        with World(seed) as world, captured_logs(world):
            try:
                StorageRun(world).run()
            except SimulationFailure as failure:
                story = "\n".join(world.story[-25:])
                raise AssertionError(f"seed {seed}: {failure.__cause__ or failure}\n{story}") from (
                    failure.__cause__
                )
