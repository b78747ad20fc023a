"""How riverrun nodes, and Apache Kafka nodes for comparison, are configured and started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from riverrun.cli.benchmark import peers
from riverrun.cli.up.secure import INTERNAL, LISTENER, protection

HOST = "127.0.0.1"
AGENT = Path(__file__).parent / "agent"
PORTS_PER_NODE = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """A node's id, folders and ports; it advertises the ports of the proxy."""

    id: int
    folder: Path
    data: Path
    first_port: int

    @property
    def client(self) -> str:
        return f"{HOST}:{self.first_port}"

    @property
    def controller(self) -> str:
        return f"{HOST}:{self.first_port + 1}"

    @property
    def http(self) -> str:
        return f"{HOST}:{self.first_port + 2}"

    @property
    def proxied_client(self) -> str:
        return f"{HOST}:{self.first_port + 3}"

    @property
    def proxied_controller(self) -> str:
        return f"{HOST}:{self.first_port + 4}"

    @property
    def internal(self) -> str:
        """The listener for other brokers, in a secure cluster."""
        return f"{HOST}:{self.first_port + 5}"

    @property
    def proxied_internal(self) -> str:
        return f"{HOST}:{self.first_port + 6}"

    @property
    def name(self) -> str:
        """The name in its certificate."""
        return f"node-{self.id}"

    @property
    def agent_file(self) -> Path:
        """The faults that the agent inside the node reads."""
        return self.folder / f"agent-{self.id}.json"


class ServerKind(Protocol):
    """A kind of server that scenarios can run on."""

    name: str
    has_agent: bool

    def prepare(
        self, node: NodePlace, places: Sequence[NodePlace], settings: Mapping[str, str]
    ) -> None: ...

    def command(self, node: NodePlace) -> list[str]: ...

    def environment(self, node: NodePlace) -> dict[str, str]: ...


def common_settings(count: int) -> dict[str, str]:
    copies = str(min(count, 3))
    return {
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "min.insync.replicas": "2" if count > 2 else "1",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
    }


class RiverrunServer:
    """riverrun nodes that find each other by seed nodes, as on several machines."""

    name = "riverrun"
    has_agent = True

    def prepare(
        self, node: NodePlace, places: Sequence[NodePlace], settings: Mapping[str, str]
    ) -> None:
        values = {
            **common_settings(len(places)),
            # Small enough that nodes start from a snapshot, as in an old cluster.
            "metadata.log.max.record.bytes.between.snapshots": "20000",
            "node.id": str(node.id),
            "log.dirs": str(node.data),
            **self._network(node, places),
            "http.listener": node.http,
            **settings,
        }
        lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()]
        self._config(node).write_text("\n".join(lines) + "\n")
        node.agent_file.write_text("{}")

    def _network(self, node: NodePlace, places: Sequence[NodePlace]) -> dict[str, str]:
        others = [other.proxied_client for other in places if other.id != node.id]
        return {
            "listeners": f"PLAINTEXT://{node.client},CONTROLLER://{node.controller}",
            "advertised.listeners": (
                f"PLAINTEXT://{node.proxied_client},CONTROLLER://{node.proxied_controller}"
            ),
            **({"seed.nodes": ",".join(others)} if others else {}),
        }

    def _config(self, node: NodePlace) -> Path:
        return node.folder / f"node-{node.id}.toml"

    def command(self, node: NodePlace) -> list[str]:
        start = [sys.executable, "-m", "riverrun.cli", "start"]
        return [*start, "--config", str(self._config(node))]

    def environment(self, node: NodePlace) -> dict[str, str]:
        known = {k: v for k, v in os.environ.items() if not k.startswith("RIVERRUN_")}
        return {**known, "PYTHONPATH": str(AGENT), "CHAOS_AGENT_FILE": str(node.agent_file)}


class SecureRiverrunServer(RiverrunServer):
    """riverrun nodes as ``riverrun up --secure`` starts them."""

    def _network(self, node: NodePlace, places: Sequence[NodePlace]) -> dict[str, str]:
        others = [other.proxied_controller for other in places if other.id != node.id]
        return {
            "listeners": (
                f"{LISTENER}://{node.client},CONTROLLER://{node.controller},"
                f"{INTERNAL}://{node.internal}"
            ),
            "advertised.listeners": (
                f"{LISTENER}://{node.proxied_client},CONTROLLER://{node.proxied_controller},"
                f"{INTERNAL}://{node.proxied_internal}"
            ),
            **protection(node.name, [place.name for place in places], node.folder),
            **({"seed.nodes": ",".join(others)} if others else {}),
        }


class KafkaServer:
    """Apache Kafka nodes with static voters, formatted before the first start."""

    name = "kafka"
    has_agent = False

    def prepare(
        self, node: NodePlace, places: Sequence[NodePlace], settings: Mapping[str, str]
    ) -> None:
        copies = str(min(len(places), 3))
        values = {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "transaction.state.log.replication.factor": copies,
            **common_settings(len(places)),
            # Our defaults, so that both detect failures equally fast.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "250",
            "controller.quorum.voters": ",".join(
                f"{other.id}@{other.proxied_controller}" for other in places
            ),
            "node.id": str(node.id),
            "log.dirs": str(node.data),
            "listeners": f"PLAINTEXT://{node.client},CONTROLLER://{node.controller}",
            "advertised.listeners": f"PLAINTEXT://{node.proxied_client}",
            **settings,
        }
        config = self._config(node)
        config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        (node.folder / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        if not (node.data / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", peers.CLUSTER_ID, "-c", str(config)]
            subprocess.run([*self._java(node, ()), *tool], check=True, capture_output=True)

    def _config(self, node: NodePlace) -> Path:
        return node.folder / f"node-{node.id}.properties"

    def _java(self, node: NodePlace, flags: Sequence[str]) -> list[str]:
        log4j = f"-Dlog4j.configuration=file:{node.folder}/log4j.properties"
        return ["java", *flags, log4j, "-cp", f"{peers.kafka_jars()}/*"]

    def command(self, node: NodePlace) -> list[str]:
        flags = ("-Xmx512M", "-XX:+UseG1GC")
        return [*self._java(node, flags), "kafka.Kafka", str(self._config(node))]

    def environment(self, node: NodePlace) -> dict[str, str]:
        return dict(os.environ)


SERVERS: Mapping[str, type[RiverrunServer] | type[KafkaServer]] = {
    "riverrun": RiverrunServer,
    "kafka": KafkaServer,
}
