"""`riverrun stop`: finds a node by the lock of its data directory and waits for its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.ports.files import OsFiles, lock_owner
from tests.cli.commands import Cli
from tests.processes import executable, free_ports

SECONDS_MAX = 60


def stop(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [executable(), "stop", *words],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


def test_nodes_are_stopped_and_killed_by_their_file(tmp_path: Path) -> None:
    port = free_ports(13)
    cli = Cli(f"127.0.0.1:{port}")
    words = ["--data", str(tmp_path), "--port", str(port), "--nodes", "2", "--json"]
    with cli.started("up", *words) as up:
        first, second = json.loads(up.line())["nodes"]
        done = stop("--config", second["config"])
        named = f"The node in {second['data']} (process {second['pid']})"
        assert (done.returncode, done.stdout) == (0, f"{named} has stopped.\n"), done.stderr
        up.notice("node 2 ended with code 0")
        again = stop("--config", second["config"])
        assert again.returncode == 4
        assert f"no node runs with the data directory {second['data']}" in again.stderr
        done = stop("--data", first["data"], "--kill")
        assert done.stdout.endswith(f"(process {first['pid']}) was killed.\n")
        up.notice("node 1 ended by signal 9")
        assert up.process.wait(SECONDS_MAX) == 1
    assert stop("--config", first["config"]).returncode == 4


def test_node_that_does_not_stop_in_time_is_reported(tmp_path: Path) -> None:
    """A process that ignores SIGTERM."""
    script = (
        "import signal, sys; from riverrun.ports.files import OsFiles\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "lock = OsFiles().lock(sys.argv[1]); print(flush=True); signal.pause()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / ".lock")], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        done = stop("--data", str(tmp_path), "--timeout", "0.2")
        assert done.returncode == 1
        assert "has not ended within 0.2 s; --kill ends it at once" in done.stderr
        assert stop("--data", str(tmp_path), "--kill").returncode == 0
        assert holder.wait(SECONDS_MAX) == -signal.SIGKILL
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize("words", [[], ["--config", "a.toml", "--data", "b"]])
def test_exactly_one_way_to_name_the_node_is_required(words: list[str]) -> None:
    assert Cli("127.0.0.1:1").result("stop", *words).exit_code == 2


def test_missing_file_and_missing_directory_are_reported(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1")
    assert cli.result("stop", "--config", str(tmp_path / "no.toml")).exit_code == 2
    assert cli.result("stop", "--data", str(tmp_path / "nothing")).exit_code == 4


def test_owner_of_a_lock_is_the_process_that_holds_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert lock_owner(path) is None
    lock = OsFiles().lock(path)
    assert lock_owner(path) == os.getpid()
    lock.release()
    assert lock_owner(path) is None


@pytest.mark.parametrize("content", ["", "x", "0", "-1", "own", "999999999"])
def test_stale_process_id_in_a_lock_file_is_ignored(tmp_path: Path, content: str) -> None:
    """The id may belong to another process meanwhile."""
    path = tmp_path / "lock"
    path.write_text(str(os.getpid()) if content == "own" else content)
    assert lock_owner(str(path)) is None
