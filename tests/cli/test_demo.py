"""`make demo`: errors when nodes do not start, and a kill that falls into its stream.

The whole demo needs Spark and minutes. These tests cover what can fail before Spark starts.
"""

import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Cli
from tests.processes import Server, free_ports, until

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS_MAX = 60
COUNT = 50
RATE = 1000


def run(*words: str, temporary: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), *words],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env={"TMPDIR": str(temporary), "PATH": ""},
    )  # fmt: skip


def test_a_port_in_use_is_named_and_the_folder_too(tmp_path: Path) -> None:
    port = free_ports(23)
    with socket.create_server(("127.0.0.1", port + 12)):
        done = run("--port", str(port), temporary=tmp_path)
    assert done.returncode == 1
    assert "the demo failed: the cluster did not start:\n" in done.stdout
    assert f"port {port + 12} for HTTP (node 2) is in use" in done.stdout
    assert "nodes are up" not in done.stdout
    [kept] = tmp_path.iterdir()
    assert done.stdout.endswith(f"tables and logs are in {kept}\n")


def test_a_node_that_does_not_start_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/node-2.toml").write_text('log.retention.hours = "soon"\n')
    done = run("--folder", str(tmp_path), temporary=tmp_path)
    assert done.returncode == 1
    assert "failed: node 2 did not start: Invalid value soon for configuration" in done.stdout
    assert "nodes are up" not in done.stdout


def test_the_folder_of_an_earlier_demo_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "demo.toml").write_text("")
    done = run("--folder", str(tmp_path), temporary=tmp_path)
    assert done.returncode == 2
    assert "contains an earlier demo" in done.stderr


def test_the_demo_finds_free_ports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    demo = import_module("demo")
    port = demo.free_port(tmp_path)
    with socket.create_server(("127.0.0.1", port + 22)):
        assert demo.free_port(tmp_path) > port


def clickstream(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return import_module("demo_stream").Stream(bootstrap, COUNT, RATE)


def test_the_stream_continues_past_the_kill(
    node: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = clickstream(node.bootstrap, monkeypatch)
    stream.start()
    try:
        until(lambda: stream.is_waiting, seconds=SECONDS_MAX, what="the stream waits")
        assert not stream.has_ended()
        assert stream.acknowledged == 3 * COUNT
        stream.node_was_killed()
        assert stream.has_ended(within_seconds=SECONDS_MAX)
    finally:
        stream.stop()
    assert stream.failure is None
    assert stream.killed_after == 3 * COUNT
    assert stream.acknowledged == 3 * COUNT + 2 * RATE
    written = cli.read("clicks", "--from-beginning", "--until-end", "--format", "%v\n", "--quiet")
    assert len(written.splitlines()) == stream.acknowledged


def test_a_stream_that_cannot_write_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = clickstream("127.0.0.1:1", monkeypatch)
    stream.start()
    assert stream.has_ended(within_seconds=SECONDS_MAX)
    assert stream.failure
