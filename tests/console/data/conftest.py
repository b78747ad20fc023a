"""One node with a console, for the tests of messages and of what only nodes know."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.rest.caller import Caller
from tests.processes import Riverrun, serve

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "2"}


@pytest.fixture(scope="package")
def node() -> Iterator[Riverrun]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(Path(folder) / "node", SETTINGS, peer="riverrun") as server,
    ):
        yield server


@pytest.fixture(scope="package")
def rest(node: Riverrun) -> Iterator[Caller]:
    caller = Caller(node.http)
    yield caller
    caller.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, rest: Caller) -> str:
    """A new topic with three partitions."""
    text: str = request.node.name.partition("[")[0].removeprefix("test_")
    name = text.replace("_", "-")[:60]
    rest.call("POST", "topics", {"name": name, "partitions": 3, "replication_factor": 1})
    return name
