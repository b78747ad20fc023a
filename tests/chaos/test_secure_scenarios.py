"""Scenarios of every family on a cluster with TLS, logins and access control."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.chaos.cluster_pool import ClusterPool
from riverrun.chaos.runner import ScenarioRunner, ScenarioVerdict
from riverrun.chaos.scenarios.catalog import choose
from tests.peers import find_jdk, find_kafka, need

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]
SEED = 7


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScenarioRunner]:
    folder: Path = tmp_path_factory.mktemp("chaos")
    with ClusterPool(is_secure=True, folder=folder, log=print) as pool:
        yield ScenarioRunner(pool, log=print)


@pytest.mark.parametrize(
    "name",
    [
        "leader-killed",
        "minority-partition",
        "quorum-leader-killed",
        "transaction-coordinator-killed",
        "group-members-killed",
        "controller-killed-while-moving",
    ],
)
def test_promises_hold_in_a_secure_cluster(name: str, runner: ScenarioRunner) -> None:
    (scenario,) = choose([name])
    result = runner.run(scenario, SEED)
    problems = "\n".join(
        [*result.problems, *result.findings.as_lines(), f"kept in {result.folder}"]
    )
    assert result.verdict is ScenarioVerdict.HOLDS, problems
    assert result.figures()["acknowledged"] > 100
    if result.missing_clients:
        need(find_jdk)
        need(find_kafka)
    assert not result.missing_clients
