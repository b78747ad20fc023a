"""How a node starts: what it loads, and when clients may come."""

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

from riverrun.server.early import ALONE, EarlySockets
from riverrun.server.settings import NodeSettings
from tests.plain_client import PlainClient
from tests.processes import free_ports, until

NOT_FOR_NODES = ("rich", "typer", "click", "argparse", "importlib.metadata", "riverrun.simulation")
NOT_FOR_SETTINGS = ("asyncio", "structlog", "logging", "uvloop", "riverrun.storage.log")


def loaded(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_node_loads_nothing_of_the_command_line() -> None:
    found = loaded("import riverrun.server.main, riverrun.server.plain_structlog\n"
                   "import riverrun.server.node")  # fmt: skip
    assert "riverrun.server.node" in found
    assert [name for name in NOT_FOR_NODES if name in found] == []


def test_a_node_listens_before_it_loads_what_it_is_made_of() -> None:
    found = loaded("import riverrun.server.main")
    assert [name for name in NOT_FOR_SETTINGS if name in found] == []


def test_a_start_from_a_file_does_not_load_the_library_of_the_command_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    program = (
        "from riverrun.cli.__main__ import main\n"
        f"sys.argv = ['riverrun', 'start', '--config', {str(missing)!r}]\n"
        "try: main()\nexcept SystemExit as end: assert end.code == 2\n"
    )
    assert "typer" not in loaded(program)


# -- When clients may come ------------------------------------------------------------------------


def settings(folder: Path, **texts: str) -> NodeSettings:
    given = {name.replace("_", "."): text for name, text in texts.items()}
    return NodeSettings.from_texts({"log.dirs": str(folder)} | given)


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    with contextlib.closing(socket.socket()) as client:
        return client.connect_ex((host, port)) == 0


def is_early(made: NodeSettings) -> bool:
    early = EarlySockets.open(made)
    try:
        return accepts(made.client_addresses()[0].port)
    finally:
        early.close()


@pytest.fixture
def listeners() -> str:
    port = free_ports(2)
    return f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"


def test_a_blank_node_alone_listens_at_once(tmp_path: Path, listeners: str) -> None:
    made = settings(tmp_path, listeners=listeners)
    assert is_early(made)
    assert not accepts(made.client_addresses()[0].port), "closed again"


def test_only_clients_may_come_early(tmp_path: Path, listeners: str) -> None:
    made = settings(tmp_path, listeners=listeners)
    controller = made.controller_address()
    assert controller is not None
    with contextlib.closing(EarlySockets.open(made)):
        assert not accepts(controller.port)
    assert not is_early(settings(tmp_path, listeners=listeners, process_roles="controller"))


def test_a_node_with_seeds_refuses_until_it_serves(tmp_path: Path, listeners: str) -> None:
    assert not is_early(settings(tmp_path, listeners=listeners, seed_nodes="127.0.0.1:1"))


def test_a_node_that_was_joined_by_others_refuses_until_it_serves(
    tmp_path: Path, listeners: str
) -> None:
    (tmp_path / "meta.properties").touch()
    made = settings(tmp_path, listeners=listeners)
    assert not is_early(made), "nothing says that it is alone"
    EarlySockets(str(tmp_path)).seen(1)
    assert is_early(made)
    EarlySockets(str(tmp_path)).seen(2)
    assert not is_early(made)
    EarlySockets(str(tmp_path)).seen(1)
    assert is_early(made), "the other one left"


def test_the_note_follows_who_is_there(tmp_path: Path) -> None:
    early, note = EarlySockets(str(tmp_path)), tmp_path / ALONE
    for brokers in (1, 1, 2, 3, 1, 2):
        early.seen(brokers)
        assert note.exists() == (brokers == 1)
    EarlySockets(str(tmp_path / "gone")).seen(1)


@pytest.mark.parametrize("listener", ["PLAINTEXT://localhost:{}", "PLAINTEXT://127.0.0.1:0"])
def test_names_and_ports_yet_to_be_chosen_are_left_to_the_listener(
    tmp_path: Path, listener: str
) -> None:
    port = free_ports(1)
    with contextlib.closing(EarlySockets.open(settings(tmp_path, listeners=listener.format(port)))):
        assert not accepts(port)


def test_a_port_in_use_is_left_to_the_listener_to_report(tmp_path: Path, listeners: str) -> None:
    made = settings(tmp_path, listeners=listeners)
    with contextlib.closing(EarlySockets.open(made)):
        assert EarlySockets.open(made).take() == {}


# -- Real processes -------------------------------------------------------------------------------


def config(folder: Path, **texts: str) -> tuple[Path, int]:
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
def node(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "riverrun.cli", "start", "--config", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def first_answer(port: int) -> dict[str, Any]:
    """What a client hears that came as early as it could, without trying again."""
    until(lambda: accepts(port), seconds=60, what="somebody listens")
    with PlainClient(("127.0.0.1", port), timeout_seconds=60) as client:
        return client.request("metadata", 12, {"topics": []})


def test_a_client_that_comes_early_is_answered_when_the_node_serves(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    note = tmp_path / "data" / ALONE
    for _ in range(2):
        with node(path):
            [broker] = first_answer(port)["brokers"]
            assert broker["port"] == port
            until(note.exists, seconds=20, what="the node has seen that it is alone")


def test_addresses_and_directories_in_use_are_said_in_words(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    other, _ = config(tmp_path)
    text = path.read_text()
    third = tmp_path / "third.toml"
    third.write_text(text.replace(f"{tmp_path}/data", f"{tmp_path}/third"))
    with node(path):
        first_answer(port)
        with node(other) as same_directory:
            assert same_directory.wait(60) == 2
            assert same_directory.stderr is not None
            assert "in use by another process" in same_directory.stderr.read()
        with node(third) as same_port:
            assert same_port.wait(60) == 1
            assert same_port.stderr is not None
            assert "choose another port" in same_port.stderr.read()


def test_a_setting_that_is_refused_opens_no_port(tmp_path: Path) -> None:
    path, _ = config(tmp_path, num_partition="3")
    with node(path) as process:
        assert process.wait(60) == 2
        assert process.stderr is not None
        assert "did you mean num.partitions?" in process.stderr.read()
    assert not (tmp_path / "data").exists()


def test_a_node_that_listens_early_stops_when_it_is_told_to(tmp_path: Path) -> None:
    path, port = config(tmp_path)
    with node(path) as process:
        first_answer(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not accepts(port)
