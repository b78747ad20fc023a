"""Clusters for benchmarks. Nodes can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient

from riverrun.cli.benchmark import load, peers
from riverrun.cli.support.client_config import ClusterAddress
from riverrun.cli.support.free_ports import find_free_ports

HOST = "127.0.0.1"
START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 40.0
PORTS_PER_NODE = 10


@dataclass(slots=True)
class BenchmarkNode:
    """One node of a cluster."""

    id: int
    pid: int
    address: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    """None if it is the child of another program."""
    http: str = ""
    controller: str = ""
    data: Path = Path()


@dataclass(slots=True)
class Nodes:
    """A running cluster."""

    folder: Path
    members: dict[int, BenchmarkNode] = field(default_factory=dict)
    ready_seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)
    """The settings of clients, if the listeners are protected."""

    @property
    def bootstrap(self) -> ClusterAddress:
        addresses = ",".join(member.address for member in self.members.values())
        return ClusterAddress.of(addresses, properties=self.properties)

    @property
    def pids(self) -> list[int]:
        return [member.pid for member in self.members.values()]

    def kill(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Stop a node and wait until it is gone."""
        member = self.members[number]
        os.kill(member.pid, how)
        if member.process is not None:
            member.process.wait(STOP_SECONDS_MAX)
            return
        end = time.monotonic() + STOP_SECONDS_MAX
        while _is_running(member.pid):
            if time.monotonic() > end:
                raise peers.PeerUnavailable(f"node {number} did not end")
            time.sleep(0.005)

    def start(self, number: int) -> None:
        member = self.members[number]
        with (self.folder / f"restart-{number}.log").open("ab") as log:
            member.process = subprocess.Popen(
                member.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        member.pid = member.process.pid

    def wait(self) -> None:
        """Wait until all brokers are in the metadata."""
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            with contextlib.suppress(confluent_kafka.KafkaException):
                admin = AdminClient(load.client_settings(self.bootstrap))
                if len(admin.list_topics(timeout=3).brokers) == len(self.members):
                    return
            time.sleep(0.05)
        raise peers.PeerUnavailable(f"{len(self.members)} nodes did not form a cluster")

    def close(self) -> None:
        started = [m.process for m in self.members.values() if m.process is not None]
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A key with its certificate and the authority to trust, as PEM files that both servers read.
    All nodes have the same certificate, and clients have none."""

    keystore: Path
    truststore: Path

    def client_properties(self) -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.truststore),
        }

    def node_settings(self) -> dict[str, str]:
        """For all listeners, also those between nodes."""
        return {
            "listener.security.protocol.map": "CONTROLLER:SSL,SSL:SSL",
            "security.inter.broker.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.truststore),
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.protocol": "TLSv1.3",
        }


def common(count: int) -> dict[str, str]:
    copies = str(min(count, 3))
    return {
        "default.replication.factor": copies,
        "offsets.topic.replication.factor": copies,
        "min.insync.replicas": str(max(min(count, 3) - 1, 1)),
        "group.initial.rebalance.delay.ms": "0",
    }


@contextlib.contextmanager
def riverrun(count: int = 3, settings: tuple[str, ...] = ()) -> Iterator[Nodes]:
    """Nodes started by ``riverrun up``."""
    with tempfile.TemporaryDirectory(prefix="bench-riverrun-") as folder:
        work = Path(folder)
        up = [sys.executable, "-m", "riverrun.cli", "up", "--nodes", str(count), "--json"]
        up += ["--data", str(work / "data"), "--port", str(find_free_ports(PORTS_PER_NODE * count))]
        for text in (*(f"{name}={value}" for name, value in common(count).items()), *settings):
            up += ["--set", text]
        began = time.monotonic()
        with (work / "up.log").open("w") as log:
            process = subprocess.Popen(up, stdout=subprocess.PIPE, stderr=log, text=True)
        nodes = Nodes(work)
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], START_SECONDS_MAX)
            line = process.stdout.readline() if readable else ""
            if not line:
                said = (work / "up.log").read_text()[-500:]
                raise peers.PeerUnavailable(f"riverrun up did not get ready: {said}")
            nodes.ready_seconds = time.monotonic() - began
            for row in json.loads(line)["nodes"]:
                host, _, port = row["client"].rpartition(":")
                start = [sys.executable, "-m", "riverrun.cli", "start", "--config", row["config"]]
                nodes.members[row["id"]] = BenchmarkNode(
                    id=row["id"], pid=row["pid"], address=row["client"], command=start,
                    http=row["http"], controller=f"{host}:{int(port) + 1}", data=Path(row["data"]),
                )  # fmt: skip
            yield nodes
        finally:
            nodes.close()
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def kafka(
    count: int = 3, settings: tuple[str, ...] = (), tls: TlsFiles | None = None
) -> Iterator[Nodes]:
    """Apache Kafka in KRaft mode, combined nodes, with the heap and flags of its own scripts."""
    jars = peers.kafka_jars()
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as folder:
        work = Path(folder)
        (work / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        flags = [f"-Dlog4j.configuration=file:{work}/log4j.properties", "-cp", f"{jars}/*"]
        first = find_free_ports(PORTS_PER_NODE * count)
        ports = {number: first + PORTS_PER_NODE * (number - 1) for number in range(1, count + 1)}
        voters = ",".join(f"{number}@{HOST}:{port + 1}" for number, port in ports.items())
        nodes = Nodes(work, properties={} if tls is None else tls.client_properties())
        try:
            for number, port in ports.items():
                config = work / f"node-{number}.properties"
                chosen = {**listeners(port, tls), "controller.quorum.voters": voters}
                config.write_text(_kafka_config(work, number, count, chosen, settings))
                tool = ["kafka.tools.StorageTool", "format", "-t", peers.CLUSTER_ID]
                subprocess.run(
                    ["java", *flags, *tool, "-c", str(config)], check=True, capture_output=True
                )
                nodes.members[number] = BenchmarkNode(
                    id=number, pid=0, address=f"{HOST}:{port}",
                    command=["java", *peers.JVM, *flags, "kafka.Kafka", str(config)],
                    controller=f"{HOST}:{port + 1}", data=work / f"data-{number}",
                )  # fmt: skip
            began = time.monotonic()
            for number in ports:
                nodes.start(number)
            nodes.wait()
            nodes.ready_seconds = time.monotonic() - began
            yield nodes
        finally:
            nodes.close()


STARTERS: Final[Mapping[str, Callable[..., contextlib.AbstractContextManager[Nodes]]]] = {
    "riverrun": riverrun,
    "kafka": kafka,
}


def listeners(port: int, tls: TlsFiles | None) -> dict[str, str]:
    """The settings of the two listeners of a node."""
    protocol = "PLAINTEXT" if tls is None else "SSL"
    return {
        "listeners": f"{protocol}://{HOST}:{port},CONTROLLER://{HOST}:{port + 1}",
        "advertised.listeners": f"{protocol}://{HOST}:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        **({} if tls is None else tls.node_settings()),
    }


def _kafka_config(
    work: Path, number: int, count: int, chosen: Mapping[str, str], settings: tuple[str, ...]
) -> str:
    given = {
        "process.roles": "broker,controller", "node.id": str(number),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(work / f"data-{number}"),
        "transaction.state.log.replication.factor": str(min(count, 3)),
        **common(count),
        **chosen,
    }  # fmt: skip
    return "\n".join([*(f"{name}={value}" for name, value in given.items()), *settings]) + "\n"


def _is_running(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
