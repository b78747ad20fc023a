"""Shared by all tests: a failing test shows the end of the log of every server that it used."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests.processes import Server

# Examples have no deadline, because the machine may be slow.
settings.register_profile("riverrun", deadline=None)
settings.load_profile("riverrun")


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
