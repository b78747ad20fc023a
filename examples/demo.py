"""A demo of the whole system: three nodes, a live clickstream, a pipeline to a table and to a
topic.

It kills a node while the pipeline runs, and proves that every event is in the table exactly once.

    make demo
    make demo PORT=21000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from demo_stream import Stream

from riverrun.cli.up.files import plan
from riverrun.cli.up.ports import taken_ports

RIVERRUN = str(Path(sys.executable).with_name("riverrun"))
NODES = 3
PORTS = range(20_092, 32_000, 100)
"""Candidates for the first port: neither the ports of `make up` nor ephemeral ports."""
HEALTHY_SECONDS_MAX = 120
STREAM_SECONDS_MAX = 600
LOG_LINES_MAX = 5
PIPELINE = """\
[pipeline]
name = "demo"
bootstrap = "{bootstrap}"

[sources.clicks]
topic = "clicks"
schema = "id BIGINT, user STRING, page STRING, action STRING, time TIMESTAMP"
required = ["id"]
rows_per_batch = 2000

[transforms.purchases]
sql = "SELECT id, user, page, time FROM clicks WHERE action = 'buy'"

[sinks.clicks_table]
input = "clicks"
path = "tables/clicks"
trigger = "2 seconds"

[sinks.purchases_topic]
input = "purchases"
topic = "purchases"
key = "user"
trigger = "2 seconds"
"""


class Failed(Exception):
    """The demo failed. The text gives the reason."""


class Demo:
    def __init__(self, folder: Path, port: int | None, events: int, rate: int) -> None:
        self.folder = folder
        self.port = port
        self.events = events
        self.rate = rate
        self.started: list[subprocess.Popen[str]] = []
        self.stream: Stream | None = None
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def run(self) -> bool:
        nodes = self._start_nodes()
        bootstrap = ",".join(node["client"] for node in nodes)
        self.say(f"three nodes are up: {bootstrap}")
        # Create the topic first, so that the pipeline is ready when events arrive.
        subprocess.run(
            [RIVERRUN, "topics", "create", "clicks", "--bootstrap", bootstrap],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        file = self.folder / "demo.toml"
        file.write_text(PIPELINE.format(bootstrap=bootstrap))
        pipeline = self._start(
            [RIVERRUN, "pipeline", "run", str(file), "--master", "local[2]", "--json"],
            "pipeline.log",
        )
        self.say("starting the pipeline: clicks to a Delta table, purchases to a topic")
        self._wait_for_spark(pipeline)
        self.stream = Stream(bootstrap, self.events, self.rate)
        self.stream.start()
        self.say(f"starting a clickstream of at least {self.events} events, {self.rate} per second")
        victim = self._kill_one(pipeline, nodes, self.stream)
        self._wait_for_stream(self.stream)
        self._drain(pipeline, self.stream.acknowledged)
        subprocess.run(
            [RIVERRUN, "pipeline", "stop", str(file)], check=True, stdout=subprocess.DEVNULL
        )
        self.say("the pipeline has stopped")
        self._restart(victim, bootstrap)
        return self._prove(bootstrap, self.stream.acknowledged)

    def _wait_for_spark(self, pipeline: subprocess.Popen[str]) -> None:
        """Spark takes longer to start than three nodes."""
        while not any(query["state"] == "running" for query in self._status().values()):
            self._check(pipeline)
            time.sleep(0.5)

    def _check(self, pipeline: subprocess.Popen[str]) -> None:
        if pipeline.poll() is not None:
            raise Failed(f"the pipeline ended too early:\n{self._log_tail('pipeline.log')}")
        if self.stream is not None and self.stream.failure is not None:
            raise Failed(f"the clickstream failed: {self.stream.failure}")

    def _start_nodes(self) -> list[dict[str, Any]]:
        data = self.folder / "data"
        port = self.port or free_port(data)
        up = self._start(
            [
                RIVERRUN,
                "up",
                "--nodes",
                str(NODES),
                "--json",
                "--port",
                str(port),
                "--data",
                str(data),
                "--set",
                "num.partitions=3",
            ],
            "nodes.log",
            is_read=True,
        )
        assert up.stdout is not None
        line = up.stdout.readline()
        if not line:
            raise Failed(f"the cluster did not start:\n{self._log_tail('nodes.log')}")
        report = json.loads(line)
        if report["missing"]:
            errors = [
                f"node {one['id']} did not start: {one['reason']}" for one in report["missing"]
            ]
            raise Failed("\n".join(errors))
        nodes: list[dict[str, Any]] = report["nodes"]
        return nodes

    def _log_tail(self, log: str) -> str:
        """The last lines of a log, without the JSON status lines of the pipeline."""
        lines = (self.folder / log).read_text().splitlines()
        return "\n".join([line for line in lines if not line.startswith("{")][-LOG_LINES_MAX:])

    def _start(
        self, command: list[str], log: str, *, is_read: bool = False
    ) -> subprocess.Popen[str]:
        with (self.folder / log).open("a") as file:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE if is_read else file, stderr=file, text=True
            )
        self.started.append(process)
        return process

    def _status(self) -> dict[str, dict[str, Any]]:
        path = self.folder / ".riverrun/demo/status.json"
        if not path.exists():
            return {}
        return {query["sink"]: query for query in json.loads(path.read_text())["queries"]}

    def _show(self, queries: dict[str, dict[str, Any]]) -> None:
        for sink, query in queries.items():
            text = f"  {sink:16} {query['state']:8} {query['rows']:>7} rows"
            if query["batch_ms"] is not None:
                text += f" {query['rows_per_second']:>7.0f} rows/s, batch {query['batch_ms']} ms"
            if query["lag"] is not None:
                text += f", lag {query['lag']}"
            if query["current_records"] is not None:
                text += f", batch of {query['current_records']} under way"
            if query["state"] == "waiting":
                text += f", restarts soon: {query['reason']}"
            self.say(text)

    def _kill_one(
        self, pipeline: subprocess.Popen[str], nodes: list[dict[str, Any]], stream: Stream
    ) -> dict[str, Any]:
        """Kill a node once a tenth of the events is in the table, or the stream waits for the kill.

        The stream waits, however slow Spark is.
        """
        enough = self.events // 10
        self._until(
            pipeline,
            lambda queries: (
                stream.is_waiting or (bool(queries) and queries["clicks_table"]["rows"] >= enough)
            ),
        )
        victim = nodes[1]
        os.kill(victim["pid"], signal.SIGKILL)
        stream.node_was_killed()
        self.say(
            f"killed node {victim['id']} with kill -9 after {stream.killed_after} acknowledged "
            "events; the others continue"
        )
        return victim

    def _wait_for_stream(self, stream: Stream) -> None:
        if not stream.has_ended(within_seconds=STREAM_SECONDS_MAX):
            raise Failed(f"the clickstream has not ended after {STREAM_SECONDS_MAX} s")
        if stream.failure is not None:
            raise Failed(f"the clickstream failed: {stream.failure}")
        after = stream.acknowledged - stream.killed_after
        self.say(f"all {stream.acknowledged} events are acknowledged, {after} after the kill")

    def _drain(self, pipeline: subprocess.Popen[str], events: int) -> None:
        self._show(
            self._until(
                pipeline,
                lambda queries: (
                    queries["clicks_table"]["rows"] >= events
                    and all(query["lag"] == 0 for query in queries.values())
                ),
            )
        )

    def _until(
        self, pipeline: subprocess.Popen[str], is_reached: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """Wait for a condition, and show the queries every few seconds. Returns their status."""
        shown = 0.0
        while True:
            queries = self._status()
            if time.monotonic() - shown > 5:
                self._show(queries)
                shown = time.monotonic()
            if is_reached(queries):
                return queries
            self._check(pipeline)
            time.sleep(0.5)

    def _restart(self, victim: dict[str, Any], bootstrap: str) -> None:
        self._start([RIVERRUN, "start", "--config", victim["config"]], "restarted.log")
        check = [RIVERRUN, "cluster", "status", "--check", "--bootstrap", bootstrap]
        end = time.monotonic() + HEALTHY_SECONDS_MAX
        while subprocess.run(check, check=False, capture_output=True).returncode != 0:
            if time.monotonic() > end:
                log = self._log_tail("restarted.log")
                raise Failed(f"node {victim['id']} does not catch up:\n{log}")
            time.sleep(0.5)
        self.say(f"node {victim['id']} has restarted and caught up")

    def _prove(self, bootstrap: str, events: int) -> bool:
        ids = DeltaTable(str(self.folder / "tables/clicks")).to_pyarrow_table()["id"].to_pylist()
        is_exact = sorted(ids) == list(range(events))
        self.say(
            f"the table has {len(ids)} rows with {len(set(ids))} distinct events"
            f" of {events}: {'each exactly once' if is_exact else 'NOT each exactly once'}"
        )
        audit = subprocess.run(
            [
                RIVERRUN,
                "audit",
                "replicas",
                "clicks",
                "purchases",
                "--bootstrap",
                bootstrap,
                "--master",
                "local[2]",
            ],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.say(audit.stdout.strip() or "the audit failed")
        return is_exact and audit.returncode == 0

    def stop(self) -> None:
        if self.stream is not None:
            self.stream.stop()
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def free_port(data: Path) -> int:
    """The first free port range for three nodes. `up` checks it again."""
    for first in PORTS:
        if not taken_ports(plan(data, NODES, first)):
            return first
    raise Failed(f"no free ports from {PORTS[0]} to {PORTS[-1]}; choose one with --port")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000, help="minimum number of events")
    parser.add_argument("--rate", type=int, default=500, help="events per second")
    parser.add_argument("--port", type=int, help="first port of the nodes; default: a free one")
    parser.add_argument(
        "--folder", type=Path, help="folder to keep; default: a temporary one that is removed"
    )
    given = parser.parse_args()
    if min(given.events, given.rate) < 1:
        parser.error("--events and --rate must be at least 1")
    if given.folder is not None and (given.folder / "demo.toml").exists():
        parser.error(f"{given.folder} contains an earlier demo; choose another folder")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="riverrun-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    demo = Demo(folder.absolute(), given.port, given.events, given.rate)
    code = 1
    keeps_folder = True
    try:
        code = 0 if demo.run() else 1
        keeps_folder = code != 0
    except Failed as failure:
        demo.say(f"the demo failed: {failure}")
    except subprocess.CalledProcessError as error:
        demo.say(f"the demo failed: {' '.join(error.cmd)} exited with code {error.returncode}")
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        keeps_folder = False
    finally:
        demo.stop()
        if keeps_folder or given.folder is not None:
            print(f"tables and logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
