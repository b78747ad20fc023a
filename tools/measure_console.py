"""Measures the console of a cluster with many topics: `python -m tools.measure_console`.

Three nodes on this machine, by default with 10,000 topics of one partition. It prints

* how long the first visit of a page takes: the HTML, all modules, and the first data. It is loaded
  as a browser does it, over six connections. With `--chromium` also in Chromium with an empty
  cache: by its own clock, from the navigation to the first paint and to the last data, and from
  outside, with the start of a profile, until the page has settled.
* the longest turn of the broker's event loop while 20 pages are open, and without pages. A timer of
  one millisecond in the broker measures the CPU time and the real time between two of its calls.
  Other work on the machine makes the real time longer, but not the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clusters import Cluster, Member, serve_three
from tests.processes import until

PAGES: Final = {
    "overview": (
        ("overview", 5.0),
        ("nodes", 5.0),
        ("history?series=bytes_in,bytes_out&minutes=60", 10.0),
        ("history?series=messages_in&minutes=60", 10.0),
        ("history?series=produce_p99,fetch_p99&minutes=60", 10.0),
        ("history?series=group_lag&minutes=60", 10.0),
        ("topics?sort=messages_in&order=desc&limit=5", 10.0),
        ("groups?sort=lag&order=desc&limit=5", 10.0),
    ),
    "topics": (
        ("overview", 10.0),
        ("topics?sort=name&order=asc&page=1&limit=50", 10.0),
    ),
}
"""The requests of a page below /api/v1/clusters/main, and the seconds between two of each."""
CONNECTIONS: Final = 6
TOPICS_PER_REQUEST: Final = 500
ROUNDS: Final = 10
OPEN_PAGES: Final = 20
OPEN_SECONDS: Final = 20.0
WAIT_SECONDS_MAX: Final = 120.0
TICK_SECONDS: Final = 0.001
REPORT_SECONDS: Final = 1.0
IMPORT: Final = re.compile(r'\b(?:import|export)\b[^;"(]*"(\.[^"]+)"')
PAGE_CLOCK: Final = """() => [
    performance.getEntriesByName("first-contentful-paint")[0].startTime,
    Math.max(...performance.getEntriesByType("resource").map((each) => each.responseEnd)),
]"""
RESOURCE: Final = re.compile(r'(?:src|href)="(/static/[^"]+)"')

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


# The broker, with a timer that measures the turns of its loop


class TurnMeter:
    """Writes the longest turn of each second as a line: its time, CPU and real time in ms."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._longest = [0.0, 0.0]
        self._last = time.thread_time(), time.monotonic()
        self._written_at = time.monotonic()

    def start(self) -> None:
        self._last = time.thread_time(), time.monotonic()
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        for place, (now, before) in enumerate(
            zip((time.thread_time(), time.monotonic()), self._last, strict=True)
        ):
            self._longest[place] = max(self._longest[place], now - before)
        if time.monotonic() - self._written_at > REPORT_SECONDS:
            row = [time.time(), *(round(each * 1000, 2) for each in self._longest)]
            with self._path.open("a") as output:
                output.write(f"{json.dumps(row)}\n")
            self._longest, self._written_at = [0.0, 0.0], time.monotonic()
        self.start()


def serve(config: str, turns: Path) -> None:
    """Run a node as `riverrun start` does it, beside the meter."""
    import riverrun.server.main as server
    from riverrun.cli.main import main as riverrun_command
    from riverrun.server.watchdog import Watchdog

    class MeteredWatchdog(Watchdog):
        def start(self) -> None:
            super().start()
            if not self.is_metered:
                self.is_metered = True
                TurnMeter(turns).start()

        is_metered = False

    setattr(server, "Watchdog", MeteredWatchdog)  # noqa: B010 (it is not exported)
    sys.argv = ["riverrun", "start", "--config", config]
    riverrun_command()


def restart_metered(node: Member, turns: Path) -> None:
    node.kill(signal.SIGTERM)
    node.wait_gone(WAIT_SECONDS_MAX)
    own = [sys.executable, "-m", "tools.measure_console"]
    node.pid = node.spawn([*own, "--config", str(node.config), "--turns", str(turns)]).pid
    node.wait_ready(WAIT_SECONDS_MAX)


# A page, loaded as a browser does it


class PlainHttp:
    """Six connections to a node. A client library would need more CPU than the console."""

    def __init__(self, http: str) -> None:
        self._host, _, port = http.rpartition(":")
        self._port = int(port)
        self._free: asyncio.Queue[Connection | None] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            self._free.put_nowait(None)
        self.received_bytes = 0

    async def get(self, address: str) -> bytes:
        connection = await self._free.get()
        if connection is None:
            connection = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                return await self._exchange(*connection, address)
        finally:
            self._free.put_nowait(connection)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str
    ) -> bytes:
        writer.write(
            f"GET {address} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: gzip\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        assert lines[0].startswith("HTTP/1.1 200 "), (address, lines[0], body[:300])
        self.received_bytes += len(head) + len(body)
        return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body

    def close(self) -> None:
        while not self._free.empty():
            connection = self._free.get_nowait()
            if connection is not None:
                connection[1].close()


class ServerTime:
    """CPU seconds of a node and of its console."""

    def __init__(self, node: int) -> None:
        self._node = psutil.Process(node)

    def now(self) -> tuple[float, float]:
        consoles = sum(_cpu(child) for child in self._node.children())
        return _cpu(self._node), consoles


def _cpu(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


@dataclass
class Visit:
    seconds: float
    requests: int
    sent_bytes: int


class PageLoader:
    """Loads a page without a cache."""

    def __init__(self, client: PlainHttp, page: str) -> None:
        self._client = client
        self._page = page
        self._seen: dict[str, None] = {}

    async def visit(self) -> Visit:
        began = time.monotonic()
        address = f"/ui/main/{self._page}"
        html = await self._get(address)
        addresses = RESOURCE.findall(html)
        base = next(one for one in addresses if one.endswith("/app.js")).removesuffix("app.js")
        # The page's module is imported, and data is read, as soon as the modules of the frame run.
        await asyncio.gather(*map(self._module, addresses))
        await self._module(f"{base}pages/{self._page}.js")
        data = [f"/api/v1/clusters/main/{path}" for path, _ in PAGES[self._page]]
        await asyncio.gather(*map(self._get, ["/api/v1/session", *data]))
        return Visit(time.monotonic() - began, len(self._seen), self._client.received_bytes)

    async def _module(self, address: str) -> None:
        if address in self._seen:
            return
        text = await self._get(address)
        if address.endswith(".js"):
            needed = [urljoin(address, name) for name in IMPORT.findall(text)]
            await asyncio.gather(*map(self._module, needed))

    async def _get(self, address: str) -> str:
        self._seen[address] = None
        return (await self._client.get(address)).decode()


async def visits(http: str, page: str, rounds: int) -> list[Visit]:
    found = []
    for _ in range(rounds):
        client = PlainHttp(http)
        found.append(await PageLoader(client, page).visit())
        client.close()
    return found


async def keep_open(http: str, pages: int, seconds: float) -> int:
    """Read the data of open pages again and again, as they do. Returns the number of requests."""
    end_at = time.monotonic() + seconds
    count = 0

    async def poll(client: PlainHttp, path: str, every: float, delay: float) -> None:
        nonlocal count
        await asyncio.sleep(delay)
        while time.monotonic() < end_at:
            began = time.monotonic()
            await client.get(f"/api/v1/clusters/main/{path}")
            count += 1
            rest = began + every - time.monotonic()
            await asyncio.sleep(max(0.0, min(rest, end_at - time.monotonic())))

    clients = [PlainHttp(http) for _ in range(pages)]
    try:
        async with asyncio.TaskGroup() as group:
            for place, client in enumerate(clients):
                for path, every in list(PAGES.values())[place % len(PAGES)]:
                    group.create_task(poll(client, path, every, every * place / pages))
    finally:
        for client in clients:
            client.close()
    return count


# The measurement


def create_topics(bootstrap: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for first in range(0, count, TOPICS_PER_REQUEST):
        names = [f"topic-{number:05}" for number in range(first, first + TOPICS_PER_REQUEST)]
        made = admin.create_topics(
            [NewTopic(name, 1, 1) for name in names[: count - first]], request_timeout=60
        )
        for future in made.values():
            future.result(WAIT_SECONDS_MAX)


def turns_since(path: Path, moment: float) -> Iterator[tuple[float, float]]:
    for line in path.read_text().splitlines():
        at, cpu_ms, real_ms = json.loads(line)
        if at >= moment:
            yield cpu_ms, real_ms


def print_turns(name: str, rows: Sequence[tuple[float, float]]) -> None:
    cpu, real = (max((row[place] for row in rows), default=0.0) for place in (0, 1))
    typical = statistics.median(row[0] for row in rows) if rows else 0.0
    print(
        f"longest turn of the loop, {name}: {cpu:.1f} ms CPU, {real:.1f} ms real; "
        f"median of the longest of each second {typical:.1f} ms CPU",
        flush=True,
    )


def measure(cluster: Cluster, turns: Path, options: argparse.Namespace) -> None:
    node = cluster.nodes[1]
    print(f"{options.topics:,} topics, three nodes; node 1 is measured", flush=True)
    asyncio.run(visits(node.http, "overview", 1))  # starts the console
    used = ServerTime(node.pid)
    for page in PAGES:
        before = used.now()
        found = asyncio.run(visits(node.http, page, options.rounds))
        broker, console = (
            (after - begin) * 1000 / options.rounds
            for after, begin in zip(used.now(), before, strict=True)
        )
        times = sorted(visit.seconds * 1000 for visit in found)
        print(
            f"first visit of {page}: p50 {statistics.median(times):.0f} ms, "
            f"{times[0]:.0f} to {times[-1]:.0f} ms, {found[0].requests} requests, "
            f"{found[0].sent_bytes / 1000:.0f} KB on the wire; "
            f"CPU {console:.0f} ms console, {broker:.0f} ms broker",
            flush=True,
        )
    if options.chromium:
        shown_in_chromium(node.http, options.rounds)
    for name, pages in (("no page", 0), (f"{options.pages} open pages", options.pages)):
        began = time.time()
        if pages:
            count = asyncio.run(keep_open(node.http, pages, options.seconds))
            print(f"{count:,} requests of {pages} pages in {options.seconds:g} s", flush=True)
        else:
            time.sleep(options.seconds)
        print_turns(name, list(turns_since(turns, began + REPORT_SECONDS)))


def shown_in_chromium(http: str, rounds: int) -> None:
    from playwright.sync_api import sync_playwright

    from tests.console.browser.console_page import FLAGS, ConsolePage
    from tests.peers import find_chromium, need

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=need(find_chromium), args=FLAGS)
        for page in PAGES:
            times: list[float] = []
            paints: list[float] = []
            answers: list[float] = []
            for _ in range(rounds):
                began = time.monotonic()
                console = ConsolePage.open(browser, http, page)
                console.expect_heading(page.capitalize())
                console.settle()
                times.append((time.monotonic() - began) * 1000)
                painted, answered = console.page.evaluate(PAGE_CLOCK)
                paints.append(painted)
                answers.append(answered)
                console.page.context.close()
            paint, data, settled = map(statistics.median, (paints, answers, times))
            print(
                f"{page} in Chromium: p50 of the first paint {paint:.0f} ms, of the last data "
                f"{data:.0f} ms; settled after {settled:.0f} ms with the start of the profile",
                flush=True,
            )
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.measure_console")
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--pages", type=int, default=OPEN_PAGES)
    parser.add_argument("--seconds", type=float, default=OPEN_SECONDS)
    parser.add_argument("--chromium", action="store_true")
    # For the node that this tool starts.
    parser.add_argument("--config", help=argparse.SUPPRESS)
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.config:
        serve(options.config, options.turns)
        return
    settings: dict[str, Any] = {"default.replication.factor": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_three(Path(folder) / "cluster", settings) as cluster,
    ):
        cluster.wait_healthy()
        create_topics(cluster.bootstrap, options.topics)
        turns = Path(folder) / "turns"
        restart_metered(cluster.nodes[1], turns)
        cluster.wait_healthy()
        until(turns.exists, seconds=WAIT_SECONDS_MAX, what="turns are measured")
        measure(cluster, turns, options)


if __name__ == "__main__":
    main()
