"""A cluster of three nodes for the tests of the REST API, and a secure node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster, serve_three
from tests.console.rest.caller import Caller, V3Caller
from tests.secure_node import SecureNode

# Two replicas of internal topics, so that a node can be emptied.
SETTINGS = {
    "offsets.topic.replication.factor": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "2",
    "group.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_three(Path(folder) / "c", SETTINGS) as three,
    ):
        three.wait_healthy()
        yield three


@pytest.fixture(scope="package")
def rest(cluster: Cluster) -> Iterator[Caller]:
    caller = Caller(cluster.nodes[1].http)
    yield caller
    caller.close()


@pytest.fixture(scope="package")
def v3(rest: Caller) -> V3Caller:
    return V3Caller(rest)


@pytest.fixture(scope="package")
def secure() -> Iterator[SecureNode]:
    with tempfile.TemporaryDirectory() as folder:
        node = SecureNode(Path(folder) / "data")
        yield node
        node.stop()


@pytest.fixture(scope="package")
def admin(secure: SecureNode) -> Iterator[Caller]:
    """The REST API as the first user, who may do everything."""
    caller = secure_caller(secure, secure.security["user"], secure.security["password"])
    yield caller
    caller.close()


def secure_caller(secure: SecureNode, user: str, password: str) -> Caller:
    return Caller(secure.told["nodes"][0]["http"], auth=(user, password))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics, groups and users that no other test uses."""
    text: str = request.node.name.partition("[")[0].removeprefix("test_")
    return text.replace("_", "-")[:60]
