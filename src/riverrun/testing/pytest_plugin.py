"""Fixtures of a real cluster for pytest.

- ``riverrun_cluster``: a ``Cluster`` for the whole session, shared between xdist workers
- ``riverrun_topic``: the name of a new topic for each test
- ``riverrun_settings``: override it to give the nodes settings

A failed test that used one of these fixtures shows the end of the cluster's log.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pluggy import Result

    from riverrun.testing.cluster import Cluster
    from riverrun.testing.processes import Settings

CLUSTER_FIXTURE = "riverrun_cluster"
LOG_TAIL_CHARACTERS = 8_000


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("riverrun", "a Kafka cluster for tests")
    group.addoption(
        "--riverrun-nodes",
        type=int,
        default=1,
        metavar="N",
        help="Number of nodes of the cluster (default: 1).",
    )
    group.addoption(
        "--riverrun-bootstrap",
        default=None,
        metavar="HOST:PORT",
        help="Use a running cluster at this address instead of starting one.",
    )


@pytest.fixture(scope="session")
def riverrun_settings() -> Settings:
    """Broker settings of the cluster. Override this fixture in a conftest.py."""
    return {}


@pytest.fixture(scope="session")
def riverrun_cluster(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    riverrun_settings: Settings,
) -> Iterator[Cluster]:
    """A cluster for the whole session. Tests use topics of their own."""
    from riverrun.testing.cluster import Cluster
    from riverrun.testing.sharing import shared_cluster

    nodes: int = request.config.getoption("--riverrun-nodes")
    bootstrap: str | None = request.config.getoption("--riverrun-bootstrap")
    if bootstrap is not None:
        cluster = Cluster.connect(bootstrap)
        try:
            cluster.check_reachable()
        except (OSError, ValueError) as error:  # pytest repeats it for each test without waiting
            pytest.fail(f"--riverrun-bootstrap {bootstrap}: {error}", pytrace=False)
        yield cluster
    elif hasattr(request.config, "workerinput"):
        # The base folder of a worker is inside the one of the whole run.
        folder = tmp_path_factory.getbasetemp().parent
        with shared_cluster(folder, nodes=nodes, settings=riverrun_settings) as cluster:
            yield cluster
    else:
        with Cluster(nodes, settings=riverrun_settings) as cluster:
            yield cluster


@pytest.fixture
def riverrun_topic(request: pytest.FixtureRequest, riverrun_cluster: Cluster) -> Iterator[str]:
    """The name of a new topic with one partition. It is deleted if the cluster keeps running."""
    from riverrun.testing.operations import unique_name

    topic = riverrun_cluster.topic(name=unique_name(request.node.name))
    yield topic
    if request.config.getoption("--riverrun-bootstrap") is not None:
        riverrun_cluster.delete_topic(topic)


@pytest.hookimpl(hookwrapper=True)  # the style that pytest 7 knows too
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, Result[pytest.TestReport], None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        cluster: Cluster | None = getattr(item, "funcargs", {}).get(CLUSTER_FIXTURE)
        if cluster is not None:
            report.sections.append(("riverrun log", cluster.logs()[-LOG_TAIL_CHARACTERS:]))
