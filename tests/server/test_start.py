"""A node process: the modules that it loads, passed sockets, and its exit codes."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.plain_client import PlainClient
from tests.processes import free_ports, until

pytestmark = pytest.mark.slow

NOT_FOR_NODES = (
    *("typer", "click", "starlette", "uvicorn"),
    *("riverrun.cli", "riverrun.console", "riverrun.simulation"),
)

SERVICE_MANAGER = """
import os, sys
passed, *command = sys.argv[1:]
os.dup2(int(passed), 3)
os.environ["LISTEN_FDS"] = "1"
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(command[0], command)
"""
"""Passes one socket to a program, as systemd does."""


def test_node_does_not_load_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import riverrun.server.main, sys; print(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "riverrun.server.node" in loaded
    assert [name for name in NOT_FOR_NODES if name in loaded] == []


def config(folder: Path, **texts: str) -> tuple[Path, int]:
    """A configuration file of a node, and the port of its client listener."""
    port = free_ports(3)
    lines = {
        "log.dirs": str(folder / "data"),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "http.listener": f"127.0.0.1:{port + 2}",
    } | {name.replace("_", "."): text for name, text in texts.items()}
    path = folder / f"node-{port}.toml"
    path.write_text("".join(f'"{name}" = "{text}"\n' for name, text in lines.items()))
    return path, port


@contextlib.contextmanager
def node(path: Path, passed: socket.socket | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "riverrun.cli", "start", "--config", str(path)]
    descriptors = () if passed is None else (passed.fileno(),)
    if passed is not None:
        command = [sys.executable, "-c", SERVICE_MANAGER, str(passed.fileno()), *command]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, pass_fds=descriptors
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def accepts(port: int) -> bool:
    with contextlib.closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def brokers(client: PlainClient) -> list[Any]:
    found: list[Any] = client.request("metadata", 12, {"topics": []})["brokers"]
    return found


def until_up(port: int) -> None:
    until(lambda: accepts(port), seconds=60, what="the node listens")
    with PlainClient(("127.0.0.1", port), timeout_seconds=60) as client:
        until(lambda: brokers(client), seconds=60, what="the broker is unfenced")


def test_connection_on_a_passed_socket_is_served_when_the_node_is_up(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    with socket.create_server(("127.0.0.1", port)) as passed:
        client = PlainClient(("127.0.0.1", port), timeout_seconds=60)
        for _ in range(2):
            with client, node(path, passed) as process:
                [broker] = brokers(client)
                assert broker["port"] == port
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            client = PlainClient(("127.0.0.1", port), timeout_seconds=60)  # while it is down
        client.close()


def test_passed_socket_of_no_listener_is_closed(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as passed:
        with node(path, passed) as process:
            until_up(port)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stderr is not None
            logged = process.stderr.read()
        assert "closed a passed socket of no listener" in logged
        assert str(passed.getsockname()[1]) in logged


def test_node_names_an_address_or_directory_in_use(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    other, _ = config(tmp_path)
    text = path.read_text()
    third = tmp_path / "third.toml"
    third.write_text(text.replace(f"{tmp_path}/data", f"{tmp_path}/third"))
    with node(path):
        until_up(port)
        with node(other) as same_directory:
            assert same_directory.wait(60) == 2
            assert same_directory.stderr is not None
            assert "in use by another process" in same_directory.stderr.read()
        with node(third) as same_port:
            assert same_port.wait(60) == 1
            assert same_port.stderr is not None
            assert "choose another port" in same_port.stderr.read()


@pytest.mark.parametrize(("above", "host"), [(0, "127.0.0.1"), (1, "127.0.0.1"), (2, "0.0.0.0")])
def test_port_in_use_is_found_before_a_directory_is_created(
    tmp_path: Path, above: int, host: str
) -> None:
    path, port = config(tmp_path)
    with socket.create_server((host, port + above)), node(path) as process:
        assert process.wait(60) == 1
        assert process.stderr is not None
        logged = process.stderr.read()
    assert f"cannot listen on 127.0.0.1:{port + above}: address already in use" in logged
    assert "choose another port (--advertised-addr, or `listeners` and `http.listener`)" in logged
    assert "a closed connection may hold it for a minute" in logged
    assert not (tmp_path / "data").exists()


def test_ports_of_roles_that_the_node_lacks_may_be_in_use(tmp_path: Path) -> None:
    """A controller does not listen for clients."""
    path, port = config(tmp_path, process_roles="controller")
    with socket.create_server(("127.0.0.1", port)), node(path) as process:
        until(lambda: accepts(port + 1), seconds=60, what="the controller listens")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_invalid_setting_is_refused_before_a_directory_is_created(tmp_path: Path) -> None:
    path, _ = config(tmp_path, num_partition="3")
    with node(path) as process:
        assert process.wait(60) == 2
        assert process.stderr is not None
        assert "did you mean num.partitions?" in process.stderr.read()
    assert not (tmp_path / "data").exists()


def test_node_exits_with_0_on_sigterm_and_closes_its_port(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    with node(path) as process:
        until_up(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not accepts(port)
