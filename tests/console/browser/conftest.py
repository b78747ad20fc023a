"""A cluster with data, a secure node, and Chromium."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.clusters import Cluster, serve_three
from tests.console.browser.console_page import FLAGS, ConsolePage, secure_page
from tests.console.browser.sample_data import publish_samples, write_samples
from tests.peers import find_chromium, need
from tests.secure_node import SecureNode

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "default.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
}

OpenPage = Callable[..., ConsolePage]


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_three(Path(folder) / "c", SETTINGS) as three,
    ):
        three.wait_healthy()
        write_samples(three.bootstrap)
        publish_samples(three.bootstrap)
        yield three


@pytest.fixture(scope="package")
def secure() -> Iterator[SecureNode]:
    with tempfile.TemporaryDirectory() as folder:
        node = SecureNode(Path(folder) / "data")
        yield node
        node.stop()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=need(find_chromium), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Browser, cluster: Cluster) -> Iterator[OpenPage]:
    """Opens pages of the cluster's console, in a browser profile of the test's own."""
    opened: list[Page] = []

    def open_(path: str, *, node: int = 1, theme: str = "light", width: int = 1280) -> ConsolePage:
        console = ConsolePage.open(
            chromium, cluster.nodes[node].http, path, theme=theme, width=width
        )
        opened.append(console.page)
        return console

    yield open_
    for page in opened:
        page.context.close()


@pytest.fixture
def secure_console(chromium: Browser, secure: SecureNode) -> Iterator[ConsolePage]:
    console = secure_page(chromium, secure)
    yield console
    console.page.context.close()
