"""Scenarios on a cluster with TLS, logins and access control."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.chaos.cluster_pool import ClusterPool
from riverrun.chaos.runner import ScenarioRunner, ScenarioVerdict
from riverrun.chaos.scenarios.catalog import choose

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
SEED = 7


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioRunner]:
    folder: Path = tmp_path_factory.mktemp("chaos")
    with ClusterPool(is_secure=True, folder=folder, log=print) as pool:
        yield ScenarioRunner(pool, log=print)


@pytest.mark.parametrize("name", ["leader-killed", "minority-partition"])
def test_promises_hold_in_a_secure_cluster(name: str, runner: ScenarioRunner) -> None:
    (scenario,) = choose([name])
    result = runner.run(scenario, SEED)
    problems = "\n".join(
        [*result.problems, *result.findings.as_lines(), f"kept in {result.folder}"]
    )
    assert result.verdict is ScenarioVerdict.HOLDS, problems
    assert result.figures()["acknowledged"] > 100
