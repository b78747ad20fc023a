"""`python -m tests.console.browser.screenshots`: the pictures of docs/console.md.

Starts three nodes with traffic, a group that falls behind, a pipeline and a secure node, publishes
the report of a chaos run, and writes each page in light and dark to docs/images. Look at the
pictures before you keep them.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from playwright.sync_api import Browser, sync_playwright

from tests.clusters import Cluster, serve_three
from tests.console.browser.conftest import SETTINGS
from tests.console.browser.console_page import FLAGS, ConsolePage, secure_page
from tests.console.browser.pages import PAGES
from tests.console.browser.sample_data import PIPELINE, write_samples
from tests.peers import find_chromium
from tests.secure_node import SecureNode

IMAGES = Path(__file__).parents[3] / "docs/images"
HISTORY_SECONDS = 150.0
SCENARIO = "leader-killed"
REPORT_TITLE = f"Chaos: {SCENARIO} on riverrun"
SECURED = ("users", "acls", "quotas")
DECLARATION = """\
[pipeline]
name = "{name}"
bootstrap = "{bootstrap}"

[sources.orders]
topic = "orders"
schema = "id BIGINT, amount BIGINT, city STRING"
required = ["id"]

[sinks.orders]
input = "orders"
format = "delta"
path = "{folder}/tables"
"""


@contextmanager
def traffic(bootstrap: str) -> Iterator[None]:
    """A producer whose rate changes, and a consumer that is slower."""
    stop = threading.Event()

    def produce() -> None:
        rng = random.Random(1)
        producer = Producer({"bootstrap.servers": bootstrap})
        number = 0
        while not stop.wait(0.2):
            for _ in range(rng.randint(5, 60)):
                number += 1
                value = {"id": number, "amount": rng.randint(1, 900), "city": "Oslo"}
                producer.produce("orders", json.dumps(value), key=f"customer-{number % 40}")
            producer.poll(0)
        producer.flush(10)

    def consume() -> None:
        group = {"group.id": "invoices", "auto.offset.reset": "latest"}
        consumer = Consumer({"bootstrap.servers": bootstrap, **group})
        consumer.subscribe(["orders"])
        while not stop.wait(0.3):
            consumer.consume(40, 0.1)
        consumer.close()

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def pipeline(bootstrap: str, folder: Path) -> Iterator[None]:
    """A pipeline on Spark, from the orders to a table."""
    file = folder / "pipeline.toml"
    file.write_text(DECLARATION.format(name=PIPELINE, bootstrap=bootstrap, folder=folder))
    with (folder / "pipeline.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "riverrun", "pipeline", "run", str(file)],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def publish_report(bootstrap: str) -> None:
    """Of a real run, on a cluster of its own."""
    words = ["chaos", "run", SCENARIO, "--publish", "--bootstrap", bootstrap]
    subprocess.run([sys.executable, "-m", "riverrun", *words], check=True)


def place_of(console: ConsolePage, name: str) -> tuple[str, str]:
    """The address and the heading of a page. The name of a report has the time in it."""
    if name != "report":
        return PAGES[name]
    console.go("reports")
    address = console.page.get_by_role("link", name=REPORT_TITLE).first.get_attribute("href")
    return str(address).split("/ui/main/", 1)[1], REPORT_TITLE


def shoot(console: ConsolePage, name: str, theme: str) -> None:
    path, heading = place_of(console, name)
    console.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    console.go(path)
    console.expect_heading(heading)
    console.settle()
    console.page.wait_for_load_state("networkidle")
    console.page.screenshot(path=IMAGES / f"console-{name}-{theme}.png")


def shoot_cluster(browser: Browser, cluster: Cluster) -> None:
    console = ConsolePage.open(browser, cluster.nodes[1].http, "overview")
    for name in PAGES:
        if name not in SECURED:
            for theme in ("light", "dark"):
                shoot(console, name, theme)


def shoot_secure(browser: Browser, folder: Path) -> None:
    node = SecureNode(folder / "data")
    try:
        properties = node.security["properties"]
        command = [sys.executable, "-m", "riverrun"]
        login = ["--bootstrap", node.bootstrap, "--command-config", properties]
        for words in (
            ["users", "add", "alice"],
            ["acls", "add", "--user", "alice", "--role", "producer", "--topic", "orders"],
            [
                "acls",
                "add",
                "--user",
                "billing",
                "--operation",
                "All",
                "--topic",
                "bills",
                "--deny",
            ],
            ["quotas", "set", "--user", "alice", "producer_byte_rate=10MB"],
        ):
            password = {"RIVERRUN_NEW_PASSWORD": secrets.token_urlsafe()}
            environment = {**os.environ, **password}
            subprocess.run([*command, *words, *login], check=True, env=environment)
        console = secure_page(browser, node)
        for theme in ("light", "dark"):
            console.page.emulate_media(color_scheme=theme)
            console.page.get_by_label("User", exact=True).wait_for()
            console.page.screenshot(path=IMAGES / f"console-login-{theme}.png")
        console.page.get_by_label("User", exact=True).fill(node.security["user"])
        console.page.get_by_label("Password", exact=True).fill(node.security["password"])
        console.button("Log in").click()
        console.expect_heading("Overview")
        for name in SECURED:
            for theme in ("light", "dark"):
                shoot(console, name, theme)
    finally:
        node.stop()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        serve_three(Path(folder) / "c", SETTINGS) as cluster,
    ):
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        cluster.wait_healthy()
        write_samples(cluster.bootstrap)
        publish_report(cluster.bootstrap)
        with traffic(cluster.bootstrap), pipeline(cluster.bootstrap, Path(folder)):
            threading.Event().wait(HISTORY_SECONDS)
            shoot_cluster(browser, cluster)
        shoot_secure(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
