"""Messages to a service manager: from real nodes, and the watchdog of the event loop."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.server.service_manager import ServiceManager
from tests.processes import executable, free_ports

SECONDS_MAX = 60


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(SECONDS_MAX)
        yield made


def start(tmp_path: Path, address: str, **environment: str) -> "subprocess.Popen[bytes]":
    port = free_ports(3)
    return subprocess.Popen(
        [executable(), "start", "--node-id", "1", "--data", str(tmp_path / "data"),
         "--advertised-addr", f"127.0.0.1:{port}"],
        env={**os.environ, "NOTIFY_SOCKET": address, **environment},
        stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_node_reports_that_it_is_ready_and_stops(tmp_path: Path, is_abstract: bool) -> None:
    address = f"@riverrun-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if is_abstract else address)
        manager.settimeout(SECONDS_MAX)
        process = start(tmp_path, address)
        try:
            assert manager.recv(512) == b"EXTEND_TIMEOUT_USEC=60000000"
            assert manager.recv(512) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(512) == b"STOPPING=1"
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
            process.communicate()


def test_a_node_feeds_the_watchdog(manager: socket.socket, tmp_path: Path) -> None:
    process = start(tmp_path, manager.getsockname(), WATCHDOG_USEC="200000")
    try:
        received = [manager.recv(512) for _ in range(5)]
    finally:
        process.kill()
        process.communicate()
    assert received[1:] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_a_manager_that_is_gone_does_not_stop_the_node(tmp_path: Path) -> None:
    process = start(tmp_path, str(tmp_path / "nobody"))
    try:
        assert process.stderr is not None
        assert any(b"node is up" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("variables", "is_fed"),
    [
        ({"WATCHDOG_USEC": "50000"}, True),
        ({"WATCHDOG_USEC": "50000", "WATCHDOG_PID": "7"}, True),
        ({"WATCHDOG_USEC": "50000", "WATCHDOG_PID": "8"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({}, False),
    ],
)
def test_the_watchdog_is_fed_if_the_manager_expects_it(
    manager: socket.socket, variables: dict[str, str], is_fed: bool
) -> None:
    async def scenario() -> None:
        told = ServiceManager({"NOTIFY_SOCKET": manager.getsockname(), **variables}, 7)
        told.ready()
        told.close()

    asyncio.run(scenario())
    manager.setblocking(False)
    assert manager.recv(512) == b"READY=1"
    if is_fed:
        assert manager.recv(512) == b"WATCHDOG=1"
    with pytest.raises(BlockingIOError):
        manager.recv(512)
