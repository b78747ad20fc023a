"""`riverrun up -d`, `riverrun up --status` and `riverrun down`, with real nodes."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from riverrun.cli.supervision import node_output
from riverrun.cli.supervision.node_output import RotatingFile
from riverrun.cli.up.state import LOCK_FILE, STATE_FILE, UpState, supervised, supervisor_of
from riverrun.cli.up.status import duration_in_words
from tests.cli.commands import Cli
from tests.processes import executable, until

SECONDS_MAX = 60


class Detached:
    """`riverrun` with temporary files in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.env = {**os.environ, "TMPDIR": str(self.temporary)}

    def run(self, *words: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [executable(), *words],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False, env=self.env,
        )  # fmt: skip
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    def up(self, *words: str, nodes: int = 1) -> dict[str, Any]:
        """Start detached on free ports; returns the announcement."""
        where = [] if "--ephemeral" in words else ["--data", str(self.data)]
        words = ("up", "-d", "--nodes", str(nodes), "--port", "0", "--json", *where, *words)
        announced: dict[str, Any] = json.loads(self.run(*words).stdout)
        return announced

    def status(self, code: int = 0) -> dict[str, Any]:
        done = self.run("up", "--status", "--data", str(self.data), "--json", code=code)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def down(self, *words: str, data: str | None = None, code: int = 0) -> str:
        done = self.run("down", "--data", data or str(self.data), *words, code=code)
        return done.stdout + done.stderr


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Detached]:
    made = Detached(tmp_path)
    try:
        yield made
    finally:
        for lock in [*tmp_path.glob(f"*/{LOCK_FILE}"), *tmp_path.glob(f"*/*/{LOCK_FILE}")]:
            supervisor = supervisor_of(lock.parent)
            if supervisor is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_gone(*pids: int) -> None:
    until(lambda: not any(map(is_running, pids)), seconds=SECONDS_MAX, what=f"{pids} have ended")


def test_a_detached_cluster_runs_until_down(detached: Detached) -> None:
    ready = detached.up(nodes=3)
    assert [node["id"] for node in ready["nodes"]] == [1, 2, 3]
    assert json.loads(Cli(ready["bootstrap"]).run("cluster", "status", "--json"))["healthy"] is True
    shown = detached.status()
    assert (shown["pid"], shown["ready"], shown["detached"]) == (ready["pid"], True, True)
    assert shown["bootstrap"] == ready["bootstrap"]
    assert 0 <= shown["uptime_seconds"] < SECONDS_MAX
    assert [node["pid"] for node in shown["nodes"]] == [node["pid"] for node in ready["nodes"]]
    for node in ready["nodes"]:
        assert "node is up" in Path(node["log"]).read_text()
    told = detached.down()
    assert told == f"The cluster in {detached.data} has stopped.\n"
    assert not any(map(is_running, [ready["pid"], *(node["pid"] for node in ready["nodes"])]))
    for node in ready["nodes"]:
        assert "stopping" in Path(node["log"]).read_text()
    names = [path.name for path in detached.data.iterdir()]
    assert LOCK_FILE not in names and STATE_FILE not in names
    assert "node-1.toml" in names


def test_a_second_detached_start_reports_the_running_cluster(detached: Detached) -> None:
    first = detached.up()
    words = ["up", "-d", "--data", str(detached.data), "--port", "0"]
    second = detached.run(*words, "--nodes", "1", "--json")
    assert json.loads(second.stdout) == first
    assert "runs already" in second.stderr
    text = detached.run(*words).stdout
    assert "1 node is up." in text
    assert f"down --data {detached.data}" in text
    foreground = detached.run("up", "--data", str(detached.data), code=2)
    assert f"runs already with {detached.data} (process {first['pid']})" in foreground.stderr
    detached.down()
    again = detached.up()
    assert again["bootstrap"] == first["bootstrap"]
    detached.down()


def test_options_that_a_running_cluster_does_not_have_are_an_error(detached: Detached) -> None:
    first = detached.up("--set", "num.partitions=2")
    port = int(first["bootstrap"].rpartition(":")[2])
    words = ("up", "-d", "--data", str(detached.data))
    for same in (
        (),
        ("--nodes", "1"),
        ("--port", str(port)),
        ("--port", "0"),
        ("--set", "num.partitions=2"),
    ):
        detached.run(*words, *same)
    for other in (
        ("--nodes", "3"),
        ("--port", str(port + 1)),
        ("--set", "num.partitions=3"),
        ("--set", "log.roll.ms=5"),
        ("--secure",),
    ):
        done = detached.run(*words, *other, code=2)
        assert f", without {' '.join(other)}\n" in done.stderr
        assert "riverrun down" in done.stderr
        assert done.stdout == ""
    assert detached.status()["bootstrap"] == first["bootstrap"]
    detached.down()


def test_ephemeral_data_is_removed_by_down(detached: Detached) -> None:
    ready = detached.up("--ephemeral")
    data = Path(ready["data"])
    assert data.parent == detached.temporary
    assert f"--data {data}" in detached.down(code=4), "it names the cluster that runs"
    assert "its data is removed" in detached.down(data=str(data))
    assert list(detached.temporary.iterdir()) == []


def test_no_node_outlives_a_killed_supervisor(detached: Detached) -> None:
    ready = detached.up("--ephemeral", nodes=2)
    os.kill(ready["pid"], signal.SIGKILL)
    wait_gone(ready["pid"], *(node["pid"] for node in ready["nodes"]))
    assert "no cluster" in detached.down(data=ready["data"], code=4)
    assert list(detached.temporary.iterdir()) == [], "down removes the temporary data"


def test_status_and_down_without_a_cluster(detached: Detached) -> None:
    for words in (["up", "--status"], ["down"]):
        done = detached.run(*words, "--data", str(detached.data), code=4)
        assert f"runs with {detached.data}" in done.stderr
    assert not detached.data.exists()


def test_status_shows_a_node_that_has_ended(detached: Detached) -> None:
    ready = detached.up(nodes=2)
    os.kill(ready["nodes"][1]["pid"], signal.SIGKILL)
    wait_gone(ready["nodes"][1]["pid"])
    assert [node["running"] for node in detached.status(code=1)["nodes"]] == [True, False]
    text = detached.run("up", "--status", "--data", str(detached.data), code=1).stdout
    assert "node\t2\tended\t-" in text
    until(
        lambda: "node 2 ended by signal 9" in Path(ready["log"]).read_text(),
        seconds=SECONDS_MAX,
        what="the supervisor logs it",
    )
    detached.down()


def test_a_second_detached_start_names_a_node_that_has_ended(detached: Detached) -> None:
    ready = detached.up(nodes=2)
    first, second = ready["nodes"]
    os.kill(second["pid"], signal.SIGKILL)
    wait_gone(second["pid"])
    words = ["up", "-d", "--data", str(detached.data)]
    text = detached.run(*words, code=1).stdout
    assert "\n1 of 2 nodes is up.\n" in text
    assert "1 of 2 nodes is up; node 2 has ended: start it again with" in text
    assert f"start --config {second['config']}`" in text
    told = json.loads(detached.run(*words, "--json", code=1).stdout)
    assert told["bootstrap"] == first["client"]
    assert told["nodes"] == [first]
    assert [(row["id"], row["reason"][:12]) for row in told["missing"]] == [(2, "it has ended")]
    with Cli(ready["bootstrap"]).started("start", "--config", second["config"]) as again:
        again.notice("node is up")
        assert "2 nodes are up." in detached.run(*words).stdout
    detached.down()


def test_down_names_a_node_that_was_started_elsewhere(detached: Detached) -> None:
    ready = detached.up(nodes=2)
    second = ready["nodes"][1]
    detached.run("stop", "--config", second["config"])
    with Cli(ready["bootstrap"]).started("start", "--config", second["config"]) as again:
        again.notice("node is up")
        assert [node["pid"] for node in detached.status()["nodes"]][1] == again.process.pid
        told = detached.down()
        assert "node-2 was started elsewhere and keeps running; stop it with" in told
        assert f"stop --config {second['config']}`" in told
        assert again.process.poll() is None


def test_down_has_a_limit_and_kills_on_request(detached: Detached) -> None:
    ready = detached.up()
    pid = ready["nodes"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "has not ended within 0.2 s; --kill" in detached.down("--timeout", "0.2", code=1)
        assert detached.down("--kill") == f"The cluster in {detached.data} was killed.\n"
        wait_gone(pid, ready["pid"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not (detached.data / STATE_FILE).exists()


def test_a_node_that_cannot_start_is_reported(detached: Detached) -> None:
    words = ["up", "-d", "--nodes", "1", "--port", "0", "--set", "log.retention.hours=soon"]
    done = detached.run(*words, "--data", str(detached.data), code=2)
    log = detached.data / "node-1.log"
    assert done.stdout == ""
    assert "node 1 could not start: Invalid value soon" in done.stderr
    assert f"see its log, {log}" in done.stderr
    assert "Invalid value soon" in log.read_text()
    assert supervisor_of(detached.data) is None
    done = detached.run(*words, "--ephemeral", code=2)
    assert "the end of its log:\nriverrun: Invalid value soon" in done.stderr
    assert list(detached.temporary.iterdir()) == []


def test_nothing_stays_when_the_start_is_interrupted(detached: Detached) -> None:
    """The node waits for a seed that does not exist."""
    words = ["--nodes", "1", "--port", "0", "--data", str(detached.data)]
    process = subprocess.Popen(
        [executable(), "up", "-d", *words, "--set", "seed.nodes=127.0.0.1:1"],
        env=detached.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        state = until(
            lambda: UpState.read(detached.data), seconds=SECONDS_MAX, what="the node is started"
        )
        assert detached.status(code=1)["ready"] is False
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
    finally:
        process.kill()
        process.wait()
    wait_gone(state.pid, *(node.pid for node in state.nodes))
    assert supervisor_of(detached.data) is None


def test_a_cluster_in_the_foreground_has_a_status_and_can_be_stopped(detached: Detached) -> None:
    cli = Cli("127.0.0.1:1")
    words = ["--nodes", "1", "--port", "0", "--data", str(detached.data), "--json"]
    with cli.started("up", *words) as foreground:
        ready = json.loads(foreground.line())
        assert detached.status()["detached"] is False
        assert detached.status()["pid"] == ready["pid"] == foreground.process.pid
        detached.down()
        assert foreground.process.wait(SECONDS_MAX) == 0


def test_a_log_file_has_a_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_output, "LOG_BYTES_MAX", 100)
    log = RotatingFile(tmp_path / "node-1.log")
    for number in range(30):
        log.write(b"line %02d 3456789\n" % number)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(files) == ["node-1.log", "node-1.log.1"]
    assert all(len(content) <= 120 for content in files.values())
    assert files["node-1.log"].endswith(b"line 29 3456789\n")


def test_a_lock_on_a_removed_file_is_not_a_lock(tmp_path: Path) -> None:
    with supervised(tmp_path):
        assert supervisor_of(tmp_path) == os.getpid()
        with pytest.raises(BlockingIOError), supervised(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": 3}', '{"nodes": [], "missing": {}}'])
def test_a_state_file_that_is_not_valid_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / STATE_FILE).write_text(text)
    assert UpState.read(tmp_path) is None


def test_the_state_file_round_trips(tmp_path: Path) -> None:
    state = UpState(pid=5, data=str(tmp_path), started_ms=7, missing={3: "why"})
    state.write()
    assert UpState.read(tmp_path) == state


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (70, "1 min 10 s"), (7200, "2 h 0 min"), (180_000, "2 d 2 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration_in_words(seconds) == words
