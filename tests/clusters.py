"""Three real nodes for tests, started by `riverrun up`, that can be killed, stopped and restarted.

A node is restarted as an operator does it: `riverrun start --config`.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.plain_client import ConnectionClosed, PlainClient
from tests.processes import (
    START_SECONDS_MAX,
    Riverrun,
    Server,
    executable,
    free_ports,
    until,
)

NODES = 3
PORTS_PER_NODE = 10
# Ports for a fourth node, which a test may start.
PORTS = PORTS_PER_NODE * (NODES + 1)
HEALTHY_SECONDS_MAX = 90


class Member(Riverrun):
    """One node of a cluster."""

    id: int

    def __init__(self, folder: Path, settings: Mapping[str, str], node: dict[str, Any]) -> None:
        super().__init__(folder, settings)
        self._take(node)
        self.id = node["id"]

    @property
    def controller(self) -> str:
        return f"{self.address[0]}:{self.address[1] + 1}"


class Cluster(Server):
    peer = "riverrun"
    nodes: dict[int, Member]

    def start(self) -> None:
        self.first_port = free_ports(PORTS)
        arguments = [executable(), "up", "--nodes", str(NODES), "--json"]
        arguments += ["--port", str(self.first_port), "--data", str(self.folder / "data")]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        process = self.spawn(arguments, stdout=subprocess.PIPE)
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS_MAX)
        line = process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"riverrun up printed no line of JSON: {self.logs()}")
        told = json.loads(line)
        self.nodes = {
            node["id"]: Member(self.folder / f"log-{node['id']}", self.settings, node)
            for node in told["nodes"]
        }
        self.address = self.nodes[1].address

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def others(self, node: int) -> str:
        """The addresses of all nodes except one."""
        return ",".join(each.bootstrap for each in self.nodes.values() if each.id != node)

    def request(self, api: str, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """The response of the first node that responds."""
        for node in self.nodes.values():
            with contextlib.suppress(OSError, ConnectionClosed), node.client() as client:
                return client.request(api, version, fields)
        raise ConnectionError("no node responds")

    def leader(self, topic: str, partition: int = 0) -> int:
        wanted = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}

        def led() -> int | None:
            rows = self.request("metadata", 12, wanted)["topics"][0]["partitions"]
            found = {row["partition_index"]: row["leader_id"] for row in rows}.get(partition, -1)
            return found if found >= 0 else None

        return int(until(led, seconds=30, what=f"{topic}-{partition} has a leader"))

    def coordinator(self, group: str) -> int:
        fields = {"key_type": 0, "coordinator_keys": [group]}

        def found() -> int | None:
            (row,) = self.request("find_coordinator", 4, fields)["coordinators"]
            return row["node_id"] if row["error_code"] == "NONE" else None

        return int(until(found, seconds=30, what=f"group {group} has a coordinator"))

    def controller(self) -> int:
        """The active controller."""
        topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}

        def found() -> int | None:
            (row,) = self.request("describe_quorum", 2, {"topics": [topic]})["topics"]
            leader = row["partitions"][0]["leader_id"]
            return leader if leader >= 0 else None

        return int(until(found, seconds=30, what="the quorum has a leader"))

    def wait_healthy(self) -> None:
        """Wait until every node sees all nodes and all replicas are in sync."""
        until(
            lambda: all(_is_healthy(node) for node in self.nodes.values()),
            seconds=HEALTHY_SECONDS_MAX,
            what=f"three healthy nodes: {self.logs()}",
        )

    def stop_all(self) -> None:
        super().stop_all()
        for node in getattr(self, "nodes", {}).values():
            node.stop_all()

    def logs(self) -> str:
        restarted = [node.logs() for node in getattr(self, "nodes", {}).values()]
        return "\n".join([super().logs(), *restarted])

    def bounce(self, node: int) -> None:
        """Restart a node cleanly and wait until the cluster is healthy."""
        self.nodes[node].kill(signal.SIGTERM)
        self.nodes[node].wait_gone(60)
        self.nodes[node].restart()
        self.wait_healthy()


def _is_healthy(node: Member) -> bool:
    try:
        with node.client() as client:
            return _has_everybody(client)
    except (OSError, ConnectionClosed):
        return False


def _has_everybody(client: PlainClient) -> bool:
    response = client.request("metadata", 12, {"topics": None, "allow_auto_topic_creation": False})
    if len(response["brokers"]) < NODES:
        return False
    rows = [row for topic in response["topics"] for row in topic["partitions"]]
    return all(
        row["leader_id"] >= 0 and len(row["isr_nodes"]) == len(row["replica_nodes"]) for row in rows
    )


@contextlib.contextmanager
def serve_three(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    copies = {
        "offsets.topic.replication.factor": str(NODES),
        "transaction.state.log.replication.factor": str(NODES),
        "transaction.state.log.min.isr": str(NODES - 1),
    }
    cluster = Cluster(folder, {**copies, **(settings or {})})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop_all()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)
