"""``riverrun pipeline run`` on a terminal, with real Spark and Ctrl-C."""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from riverrun.client.offsets import committed_offsets
from riverrun.pipeline.topics import run_request
from tests.processes import executable, serve, until
from tests.spark.java import java_environment
from tests.spark.pipelines import write

pytestmark = pytest.mark.timeout(400)

WAIT_SECONDS = 200
FILE = """
[pipeline]
name = "live"
[sources.numbers]
topic = "numbers"
schema = "id BIGINT"
[transforms.slow]
python = "slow.py:wait"
inputs = ["numbers"]
[sinks.out]
input = "slow"
path = "table"
"""
SLOW = """
import pathlib, time
def wait(numbers):
    while not numbers.isStreaming and not pathlib.Path("go").exists():
        time.sleep(0.05)
    return numbers
"""


class TerminalRun:
    """A run whose standard streams are a terminal."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self._state = folder / ".riverrun/live"
        self._shown = bytearray()
        self._terminal, inner = os.openpty()
        self.process = subprocess.Popen(
            [executable(), "pipeline", "run", "live.toml", "-b", bootstrap, "--ui-port", "0"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            cwd=folder,
            env={
                **os.environ,
                **java_environment(),
                "TERM": "xterm",
                "COLUMNS": "120",
                "RIVERRUN_SPARK_MASTER": "local[1]",
            },
        )
        os.close(inner)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal ends with its process
            while data := os.read(self._terminal, 65536):
                self._shown += data

    @property
    def shown(self) -> str:
        return bytes(self._shown).decode(errors="replace")

    def wait_for(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        until(lambda: text in self.shown, seconds=seconds, what=f"{text!r} in {self.shown[-2000:]}")

    def query(self) -> dict[str, Any]:
        """The status of the sink; empty before there is one of this process."""
        path = self._state / "status.json"
        if not path.exists():
            return {}
        status: dict[str, Any] = json.loads(path.read_text())
        found: dict[str, Any] = status["queries"][0]
        return found if status["pid"] == self.process.pid else {}

    def press_ctrl_c(self) -> None:
        """The terminal sends SIGINT to all processes of its group, here to those of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGINT)

    def press_ctrl_c_until_it_ends(self) -> int:
        def has_ended() -> bool:
            self.press_ctrl_c()
            return self.process.poll() is not None

        until(has_ended, seconds=30, what="it ends at once")
        return self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        self._reader.join(20)
        os.close(self._terminal)


@contextlib.contextmanager
def run_on_terminal(folder: Path, bootstrap: str) -> Iterator[TerminalRun]:
    run = TerminalRun(folder, bootstrap)
    try:
        yield run
    finally:
        run.close()


def check_output(run: TerminalRun) -> None:
    """Nothing of Spark or py4j reaches the terminal."""
    for noise in ("Traceback", "WARN", "py4j", "Exception", "incubator"):
        assert noise not in run.shown, run.shown


def test_ctrl_c_ends_after_the_batch_and_a_second_one_at_once(tmp_path: Path) -> None:
    (tmp_path / "live.toml").write_text(FILE)
    (tmp_path / "slow.py").write_text(SLOW)
    with serve(tmp_path / "node") as node:
        write(node.bootstrap, "numbers", [{"id": number} for number in range(50)])
        with run_on_terminal(tmp_path, node.bootstrap) as run:
            run.wait_for("starting Spark (local[1])")
            run.press_ctrl_c()
            assert run.process.wait(30) == 130, "nothing has started"
            check_output(run)
        with run_on_terminal(tmp_path, node.bootstrap) as run:
            run.wait_for("batch 0 under way")
            assert run.query()["current_records"] == 50
            until(lambda: run.query()["lag"] == 50, seconds=WAIT_SECONDS, what="the lag is known")
            run.press_ctrl_c()
            run.wait_for("ending after this batch; Ctrl-C again ends at once", 20)
            until(lambda: run.query()["state"] == "ending", seconds=20, what="the state is shown")
            assert run.press_ctrl_c_until_it_ends() == 130, "the batch is still under way"
            assert (
                run.query()["reason"]
                == "ended in the middle of a batch, which the next run repeats"
            )
            check_output(run)
        with run_on_terminal(tmp_path, node.bootstrap) as run:
            run.wait_for("batch 0 under way")
            run.press_ctrl_c()
            run.wait_for("ending after this batch", 20)
            (tmp_path / "go").touch()
            assert run.process.wait(WAIT_SECONDS) == 0
            last = run.query()
            assert (last["state"], last["rows"], last["total"]) == ("ended", 50, 50)
            check_output(run)
        committed = run_request(node.bootstrap, lambda pool: committed_offsets(pool, "live.out"))
        assert sum(committed.values()) == 50, "tools see the last batch too"
    assert (tmp_path / ".riverrun/live/spark.log").stat().st_size > 0
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["id"].to_pylist()
    assert sorted(found) == list(range(50))
