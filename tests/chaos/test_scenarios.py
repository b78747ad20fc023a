"""Every scenario once, on three or four real nodes.

Scenarios with equal settings share a cluster.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.chaos.cluster_pool import ClusterPool
from riverrun.chaos.runner import ScenarioRunner, ScenarioVerdict
from riverrun.chaos.scenarios.catalog import choose
from riverrun.chaos.scenarios.scenario import Scenario
from tests.peers import find_jdk, find_kafka, need

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
SEED = 7


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioRunner]:
    folder: Path = tmp_path_factory.mktemp("chaos")
    with ClusterPool(peer=os.environ.get("PEER", "riverrun"), folder=folder, log=print) as pool:
        yield ScenarioRunner(pool, log=print)


@pytest.mark.parametrize("scenario", choose(["all"]), ids=lambda scenario: str(scenario.name))
def test_promises_hold_in_every_scenario(scenario: Scenario, runner: ScenarioRunner) -> None:
    result = runner.run(scenario, SEED)
    if result.verdict is ScenarioVerdict.SKIPPED:
        pytest.skip(f"MISSING RIGHT: {'; '.join(result.problems)}")
    problems = "\n".join(
        [*result.problems, *result.findings.as_lines(), f"kept in {result.folder}"]
    )
    assert result.verdict is ScenarioVerdict.HOLDS, problems
    assert result.figures()["acknowledged"] > 100
    if result.missing_clients:
        need(find_jdk)
        need(find_kafka)
    assert not result.missing_clients
