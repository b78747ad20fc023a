"""Shared by all tests: logs of servers in the report of a failing test, and the built wheel."""

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.installed import Distributions, Installed, build_distributions, install
from tests.peers import need
from tests.processes import Server

# Examples have no deadline, because the machine may be slow. They are the same in every run, so
# that a failure belongs to a change; the profile "explore" searches at random.
settings.register_profile("riverrun", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "riverrun"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        arguments: dict[str, Any] = getattr(item, "funcargs", {})
        for name, value in arguments.items():
            if isinstance(value, Server):
                report.sections.append((f"log of {name} ({value.peer})", value.logs()))
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the transcripts of tests/raft")


@pytest.fixture(scope="session")
def distributions() -> Iterator[Distributions]:
    """The wheel and the sdist of this tree."""
    with tempfile.TemporaryDirectory(prefix="riverrun-dist-") as folder:
        yield build_distributions(Path(folder))


@pytest.fixture(scope="session")
def installed(distributions: Distributions) -> Iterator[Installed]:
    """A virtualenv outside the clone, with the wheel and its extra `chaos`."""
    with tempfile.TemporaryDirectory(prefix="riverrun-wheel-") as folder:
        yield need(lambda: install(distributions.wheel, Path(folder)))
