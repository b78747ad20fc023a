"""The whole story in one go: three nodes, a live clickstream, a pipeline to a table and to a topic,
a node killed on the way; at the end the proof that every event is in the table once.

    make demo
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

EXAMPLES = Path(__file__).parent
RIVERRUN = str(Path(sys.executable).with_name("riverrun"))
HEALTHY_SECONDS_MAX = 120
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


class Demo:
    def __init__(self, folder: Path, port: int, events: int, rate: int) -> None:
        self.folder = folder
        self.port = port
        self.events = events
        self.rate = rate
        self.started: list[subprocess.Popen[str]] = []
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    def run(self) -> bool:
        nodes = self._start_nodes()
        bootstrap = ",".join(node["client"] for node in nodes)
        self.say(f"three nodes are up: {bootstrap}")
        # Before the pipeline, so that it has begun to wait for events when they come.
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
        self.say("the pipeline starts: clicks to a Delta table, purchases to a topic")
        self._wait_for_spark(pipeline)
        count, rate = str(self.events), str(self.rate)
        producer = self._start(
            [sys.executable, str(EXAMPLES / "events.py"), "clicks", "--bootstrap", bootstrap,
             "--count", count, "--rate", rate],
            "events.log",
        )  # fmt: skip
        self.say(f"a clickstream of {count} events begins, {rate} per second")
        victim = self._watch(pipeline, nodes)
        if producer.wait(600) != 0:
            self.say(f"the producer failed, see {self.folder}/events.log")
            return False
        self.say("all events are acknowledged")
        self._drain(pipeline)
        stop = [RIVERRUN, "pipeline", "stop", str(file)]
        self.say(subprocess.check_output(stop, text=True).strip())
        self._restart(victim, bootstrap)
        return self._prove(bootstrap)

    def _wait_for_spark(self, pipeline: subprocess.Popen[str]) -> None:
        """Spark takes longer to start than three nodes; nothing is to be missed meanwhile."""
        while not any(query["state"] == "running" for query in self._status().values()):
            if pipeline.poll() is not None:
                sys.exit(f"the pipeline ended, see {self.folder}/pipeline.log")
            time.sleep(0.5)

    def _start_nodes(self) -> list[dict[str, Any]]:
        up = self._start(
            [
                RIVERRUN,
                "up",
                "--nodes",
                "3",
                "--json",
                "--port",
                str(self.port),
                "--data",
                str(self.folder / "data"),
                "--set",
                "num.partitions=3",
            ],
            "nodes.log",
            is_read=True,
        )
        assert up.stdout is not None
        line = up.stdout.readline()
        if not line:
            sys.exit(f"no cluster came up, see {self.folder}/nodes.log")
        nodes: list[dict[str, Any]] = json.loads(line)["nodes"]
        return nodes

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
            told = f"  {sink:16} {query['state']:8} {query['rows']:>7} rows"
            if query["batch_ms"] is not None:
                told += f" {query['rows_per_second']:>7.0f} rows/s, batch {query['batch_ms']} ms"
            if query["lag"] is not None:
                told += f", lag {query['lag']}"
            if query["state"] == "waiting":
                told += f", starts again soon: {query['reason']}"
            self.say(told)

    def _watch(
        self, pipeline: subprocess.Popen[str], nodes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Until a tenth of the events is in the table; then a node dies."""
        self._until(
            pipeline,
            lambda queries: bool(queries) and queries["clicks_table"]["rows"] >= self.events // 10,
        )
        victim = nodes[1]
        os.kill(victim["pid"], signal.SIGKILL)
        self.say(f"node {victim['id']} is killed with kill -9; the others go on")
        return victim

    def _drain(self, pipeline: subprocess.Popen[str]) -> None:
        self._show(
            self._until(
                pipeline,
                lambda queries: (
                    queries["clicks_table"]["rows"] >= self.events
                    and all(query["lag"] == 0 for query in queries.values())
                ),
            )
        )

    def _until(
        self, pipeline: subprocess.Popen[str], is_reached: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """What the queries say when it is so; shown every few seconds meanwhile."""
        shown = 0.0
        while True:
            queries = self._status()
            if time.monotonic() - shown > 5:
                self._show(queries)
                shown = time.monotonic()
            if is_reached(queries):
                return queries
            if pipeline.poll() is not None:
                sys.exit(f"the pipeline ended, see {self.folder}/pipeline.log")
            time.sleep(0.5)

    def _restart(self, victim: dict[str, Any], bootstrap: str) -> None:
        self._start([RIVERRUN, "start", "--config", victim["config"]], "restarted.log")
        check = [RIVERRUN, "cluster", "status", "--check", "--bootstrap", bootstrap]
        end = time.monotonic() + HEALTHY_SECONDS_MAX
        while subprocess.run(check, check=False, capture_output=True).returncode != 0:
            if time.monotonic() > end:
                sys.exit(f"node {victim['id']} does not catch up, see {self.folder}/restarted.log")
            time.sleep(0.5)
        self.say(f"node {victim['id']} is started again, and has caught up")

    def _prove(self, bootstrap: str) -> bool:
        from deltalake import DeltaTable

        ids = DeltaTable(str(self.folder / "tables/clicks")).to_pyarrow_table()["id"].to_pylist()
        is_exact = sorted(ids) == list(range(self.events))
        self.say(
            f"the table has {len(ids)} rows with {len(set(ids))} different events"
            f" of {self.events}: {'each event once' if is_exact else 'NOT each event once'}"
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
        for process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--port", type=int, default=19092)
    parser.add_argument("--folder", type=Path, help="kept; otherwise all is removed at the end")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="riverrun-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    demo = Demo(folder.absolute(), given.port, given.events, given.rate)
    is_proven = False
    try:
        is_proven = demo.run()
    finally:
        demo.stop()
        if given.folder is None and is_proven:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"tables and logs are in {folder}")
    sys.exit(0 if is_proven else 1)


if __name__ == "__main__":
    main()
