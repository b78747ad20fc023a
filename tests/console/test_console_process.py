"""The console's process: started by the first request, ended with its node or when idle."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from riverrun.console.__main__ import log_to_stderr
from riverrun.console.host_names import AllowedHosts
from riverrun.ports.metrics import Metrics
from riverrun.server.network import console_relay
from riverrun.server.network.console_relay import (
    PLAIN_SOCKET,
    RELAYS_MAX,
    ConsoleProcess,
    ConsoleRelay,
    start_data,
)
from riverrun.server.network.http import HttpServer, is_of_console
from riverrun.server.settings import NodeSettings
from tests.processes import Riverrun, serve, until

SECONDS_MAX = 30.0
START = {"clusters": [{"name": "main", "bootstrap": "127.0.0.1:1"}]}


def children_of(pid: int) -> list[int]:
    """The consoles that a node has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            command = (path.parent / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z" and b"riverrun.console" in command:
            found.append(int(path.parent.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def socket_of(pid: int) -> Path:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return Path(words[words.index(b"--socket") + 1].decode())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Riverrun]:
    with serve(tmp_path / "node", peer="riverrun") as server:
        yield server


def get(node: Riverrun, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"http://{node.http}{path}", headers=headers, timeout=SECONDS_MAX)


def test_the_log_does_not_go_to_the_pipe_of_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        log_to_stderr()
        structlog.get_logger("riverrun.console").warning("a warning")
    finally:
        structlog.configure(**before)
    written = capsys.readouterr()
    assert not written.out and "a warning" in written.err


@pytest.mark.slow
def test_the_first_page_starts_the_console_and_a_killed_one_is_replaced(node: Riverrun) -> None:
    assert get(node, "/health/ready").status_code == 200
    assert get(node, "/metrics").status_code == 200
    assert get(node, "/").text.startswith("/health/live")
    assert children_of(node.pid) == []

    redirect = get(node, "/", accept="text/html,*/*")
    assert (redirect.status_code, redirect.headers["location"]) == (302, "/ui/")
    assert children_of(node.pid) == [], "a redirect needs no console"

    assert get(node, "/ui/").status_code == 200
    (console,) = children_of(node.pid)
    assert stat.S_IMODE(socket_of(console).stat().st_mode) == 0o600
    assert stat.S_IMODE(socket_of(console).parent.stat().st_mode) == 0o700
    assert os.getpriority(os.PRIO_PROCESS, console) >= 5

    os.kill(console, signal.SIGKILL)
    until(lambda: is_gone(console), seconds=SECONDS_MAX, what="the console is gone")
    assert get(node, "/api/v1/clusters").json()[0]["reachable"]
    (again,) = children_of(node.pid)
    assert again != console


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_console_ends_with_its_node(node: Riverrun, number: signal.Signals) -> None:
    assert get(node, "/api/v1/session").status_code == 200
    (console,) = children_of(node.pid)
    socket = socket_of(console)
    node.kill(number)
    node.wait_gone()
    until(lambda: is_gone(console), seconds=SECONDS_MAX, what="the console has ended")
    until(lambda: not socket.parent.exists(), seconds=SECONDS_MAX, what="its folder is removed")


@pytest.mark.slow
def test_one_connection_carries_several_requests(node: Riverrun) -> None:
    with httpx.Client(base_url=f"http://{node.http}", timeout=SECONDS_MAX) as client:
        for path in ("/ui/", "/api/v1/session", "/static/x/app.js", "/api/v1/clusters/main/nodes"):
            assert client.get(path).status_code == 200
        large = client.get("/static/x/vendor/uplot.js")
        assert len(large.content) > 20_000
        stream = large.extensions["network_stream"]
        assert client.get("/api/v1/session").extensions["network_stream"] is stream


@pytest.mark.slow
def test_a_node_without_a_console_starts_none(tmp_path: Path) -> None:
    with serve(tmp_path / "node", {"console.enable": "false"}, peer="riverrun") as node:
        assert get(node, "/ui/").status_code == 404
        assert get(node, "/", accept="text/html").status_code == 200
        assert children_of(node.pid) == []


# The relay, without a node


async def ask(server: HttpServer, *requests: bytes) -> bytes:
    """All that the server sends, until it closes the connection."""
    async with asyncio.timeout(SECONDS_MAX):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for request in requests:
            writer.write(request)
            await writer.drain()
        received = await reader.read()
        writer.close()
        return received


async def no_metrics() -> None:
    return None


def relayed(data: bytes, *requests: bytes) -> bytes:
    async def run() -> bytes:
        relay = ConsoleRelay(ConsoleProcess(data))
        server = HttpServer(Metrics(), dict, no_metrics, relay)
        await server.start("127.0.0.1", 0)
        try:
            return await ask(server, *requests)
        finally:
            await server.stop()
            assert not relay.process.is_running

    return asyncio.run(run())


def test_a_console_that_cannot_start_is_a_503_with_the_reason() -> None:
    page = relayed(b"no json\n", b"GET /ui/ HTTP/1.1\r\nHost: x\r\n\r\n")
    assert page.startswith(b"HTTP/1.1 503 ")
    assert b"cannot be used: its process ended with status 1" in page
    api = relayed(b"no json\n", b"GET /api/v1/session HTTP/1.1\r\nHost: x\r\n\r\n")
    assert json.loads(api.partition(b"\r\n\r\n")[2])["error"]["code"] == "error"


def test_a_request_in_pieces_is_relayed_as_a_whole() -> None:
    data = json.dumps(START).encode() + b"\n"
    answer = relayed(
        data,
        b"GET /api/v1/ses",
        b"sion HTTP/1.1\r\nHost: [::1]\r\nConn",
        b"ection: close\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"clusters":["main"]' in answer


@pytest.mark.parametrize(
    ("target", "is_console"),
    [
        ("/", False),
        ("/health/live", False),
        ("/health", False),
        ("/metrics", False),
        ("/metrics/kafka?partitions=1", False),
        ("/metricsx", True),
        ("/ui/", True),
        ("/api/v1/session?x=/metrics", True),
        ("/v3/clusters", True),
        ("http://example.com/ui/", False),
        ("*", False),
    ],
)
def test_the_path_decides_who_responds(target: str, is_console: bool) -> None:
    assert is_of_console(target) is is_console


def console_alone(socket: Path, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "riverrun.console", "--socket", str(socket), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(START).encode() + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"ready\n"
    return process


def test_an_idle_console_ends(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    with console_alone(folder / "socket", "--idle-seconds-max", "0.1") as process:
        assert process.wait(SECONDS_MAX) == 0
    assert not folder.exists()


def test_a_console_ends_when_its_input_closes(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    with console_alone(folder / "socket") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(SECONDS_MAX) == 0


# What a node tells its console


def told(**settings: str) -> dict[str, object]:
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    line = start_data(NodeSettings.from_texts(texts))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    found: dict[str, object] = json.loads(line)["clusters"][0]
    return found


def test_a_console_uses_the_advertised_address() -> None:
    found = told(
        listeners="PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        advertised_listeners="PLAINTEXT://node1:9192",
    )
    assert found["bootstrap"] == "node1:9192"
    assert found["properties"] == {"security.protocol": "PLAINTEXT"}


def test_a_console_knows_the_names_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "machine")
    texts = {
        "listeners": "PLAINTEXT://inner.lan:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "PLAINTEXT://node1.example.com:9192",
        "http.listener": "metrics.lan:9094",
        "console.allowed.hosts": "console.example.com, .proxy.lan",
    }
    found = json.loads(start_data(NodeSettings.from_texts(texts)))["hosts"]
    assert set(found) >= {
        "inner.lan", "node1.example.com", "metrics.lan", "machine", "console.example.com",
        ".proxy.lan",
    }  # fmt: skip


@pytest.mark.parametrize(
    "texts",
    [
        {"http.listener": "*:9094"},
        {"http.listener": ":9094"},
        {"listeners": "PLAINTEXT://*:9092,CONTROLLER://127.0.0.1:9093"},
    ],
)
def test_a_node_that_listens_on_all_addresses_does_not_allow_all_names(
    texts: dict[str, str],
) -> None:
    found = json.loads(start_data(NodeSettings.from_texts(texts)))["hosts"]
    allowed = AllowedHosts(found)
    assert not allowed.allows("evil.example:9094")
    assert not allowed.allows(".")
    wanted = json.loads(
        start_data(NodeSettings.from_texts({**texts, "console.allowed.hosts": "*"}))
    )["hosts"]
    assert AllowedHosts(wanted).allows("evil.example:9094")


def test_a_console_uses_the_best_protected_listener_without_the_key_of_the_node() -> None:
    found = told(
        listeners="PLAINTEXT://127.0.0.1:9092,SASL_SSL://127.0.0.1:9192,CONTROLLER://127.0.0.1:9093",
        ssl_keystore_location="/etc/node.pem",
        ssl_key_password="secret",
        ssl_truststore_location="/etc/ca.pem",
        inter_broker_listener_name="PLAINTEXT",
    )
    assert found["bootstrap"] == "127.0.0.1:9192"
    assert found["properties"] == {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": "/etc/ca.pem",
    }
    assert "refusal" not in found


@pytest.mark.parametrize(
    ("protocol", "name", "is_refused"),
    [
        ("SSL", "ssl.client.auth", True),
        ("SASL_SSL", "ssl.client.auth", False),
        ("SASL_SSL", "listener.name.sasl_ssl.ssl.client.auth", True),
    ],
)
def test_a_listener_that_requires_certificates_has_no_console(
    protocol: str, name: str, is_refused: bool
) -> None:
    texts = {
        "listeners": f"{protocol}://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "ssl.keystore.location": "/etc/node.pem",
        name: "required",
    }
    (found,) = json.loads(start_data(NodeSettings.from_texts(texts)))["clusters"]
    assert ("requires client certificates" in found.get("refusal", "")) is is_refused


# Back pressure and limits of the relay


class StreamingConsole(ConsoleProcess):
    """In place of the process: a server that writes without an end, and counts the bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(b"")
        self._place = folder
        self.written = 0
        self.connections = asyncio.Semaphore(0)
        """Released for each connection."""
        self.ended = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def folder(self) -> str:
        if self._server is None:
            path = self._place / PLAIN_SOCKET
            self._server = await asyncio.start_unix_server(self._respond, path)
        return str(self._place)

    async def _respond(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.release()
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < STREAMED_BYTES:
                writer.write(bytes(PART_BYTES))
                sent += PART_BYTES
                self.written += PART_BYTES
                await writer.drain()
        writer.close()
        self.ended.set()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()


PART_BYTES = 64 * 1024
STREAMED_BYTES = 64 * 1024 * 1024
BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""What the kernel's buffers, the relay and the streams hold together at most."""


def with_streaming(folder: Path, scenario: Callable[[HttpServer, StreamingConsole], Any]) -> None:
    async def run() -> None:
        console = StreamingConsole(folder)
        server = HttpServer(Metrics(), dict, no_metrics, ConsoleRelay(console))
        await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(SECONDS_MAX):
                await scenario(server, console)
        finally:
            await server.stop()

    asyncio.run(run())


def test_a_slow_reader_holds_the_console_back(tmp_path: Path) -> None:
    async def scenario(server: HttpServer, console: StreamingConsole) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=PART_BYTES)
        writer.write(b"GET /ui/ HTTP/1.1\r\n\r\n")
        before = -1
        while console.written != before or not before:
            before = console.written
            await asyncio.sleep(0.3)
        assert before < BUFFERED_BYTES_MAX
        received = 0
        while part := await reader.read(PART_BYTES):
            received += len(part)
        assert received == STREAMED_BYTES
        writer.close()

    with_streaming(tmp_path, scenario)


def test_a_reader_that_leaves_ends_the_stream(tmp_path: Path) -> None:
    async def scenario(server: HttpServer, console: StreamingConsole) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /ui/ HTTP/1.1\r\n\r\n")
        await reader.readexactly(PART_BYTES)
        writer.transport.abort()
        await console.ended.wait()
        assert console.written < STREAMED_BYTES

    with_streaming(tmp_path, scenario)


def test_further_connections_are_refused_and_metrics_still_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_relay, "EVICTED_SECONDS", SECONDS_MAX)

    async def scenario(server: HttpServer, console: StreamingConsole) -> None:
        held = []
        for _ in range(RELAYS_MAX):
            pair = await asyncio.open_connection("127.0.0.1", server.port)
            pair[1].write(b"GET /ui/ HTTP/1.1\r\n\r\n")
            held.append(pair)
        for _ in range(RELAYS_MAX):
            await console.connections.acquire()
        refused = await ask(server, b"GET /ui/ HTTP/1.1\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"more than 100 connections" in refused
        assert (await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        for _, writer in held:
            writer.transport.abort()

    with_streaming(tmp_path, scenario)


def test_idle_connections_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_relay, "EVICTED_SECONDS", 0.0)

    async def scenario(server: HttpServer, console: StreamingConsole) -> None:
        held = []
        for _ in range(RELAYS_MAX):
            pair = await asyncio.open_connection("127.0.0.1", server.port)
            pair[1].write(b"GET /ui/ HTTP/1.1\r\n")  # the request never ends
            held.append(pair)
        for _ in range(RELAYS_MAX):
            await console.connections.acquire()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /ui/ HTTP/1.1\r\n\r\n")
        await console.connections.acquire()
        assert not (await reader.readexactly(12)).endswith(b"503")
        for _, each in (*held, (reader, writer)):
            each.transport.abort()

    with_streaming(tmp_path, scenario)
