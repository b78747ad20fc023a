"""Every scenario once, on three real nodes; `riverrun chaos run` plays them as long as one likes.

Scenarios that can share a cluster do, so their order matters little and their number costs less.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.chaos.cluster_pool import ClusterPool
from riverrun.chaos.runner import ScenarioRunner, ScenarioVerdict
from riverrun.chaos.scenarios.catalog import choose
from riverrun.chaos.scenarios.scenario import Scenario

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]
SEED = 7


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioRunner]:
    folder: Path = tmp_path_factory.mktemp("chaos")
    with ClusterPool(peer=os.environ.get("PEER", "riverrun"), folder=folder, tell=print) as stage:
        yield ScenarioRunner(stage, tell=print)


@pytest.mark.parametrize("scenario", choose(["all"]), ids=lambda scenario: str(scenario.name))
def test_the_promises_hold(scenario: Scenario, player: ScenarioRunner) -> None:
    result = player.play(scenario, SEED)
    if result.verdict is ScenarioVerdict.SKIPPED:
        pytest.skip(f"MISSING RIGHT: {'; '.join(result.problems)}")
    said = "\n".join([*result.problems, *result.findings.as_lines(), f"kept in {result.folder}"])
    assert result.verdict is ScenarioVerdict.HOLDS, said
    assert result.figures()["acknowledged"] > 100
