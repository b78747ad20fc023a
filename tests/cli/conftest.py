"""One real node for all commands."""

import itertools
from collections.abc import Iterator

import pytest

from tests.cli.commands import Cli
from tests.processes import Server, serve


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("cli")) as running:
        yield running


@pytest.fixture
def supervised_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node of a `riverrun up` that is running. Other tests restart the shared node without."""
    with serve(tmp_path_factory.mktemp("up")) as running:
        yield running


@pytest.fixture(scope="package")
def cli(node: Server) -> Cli:
    return Cli(node.bootstrap)


@pytest.fixture(scope="package")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def name(numbers: Iterator[int], request: pytest.FixtureRequest) -> str:
    """A unique name for a topic or group."""
    return f"{request.node.originalname}-{next(numbers)}"
