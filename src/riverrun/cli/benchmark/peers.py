"""Start the servers that are compared: Apache Kafka from its jars, and riverrun."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import confluent_kafka
from confluent_kafka.admin import AdminClient

from riverrun.cli.support.free_ports import find_free_ports

KAFKA_VERSION = "4.3.1"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
)
JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)  # fmt: skip
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
START_SECONDS_MAX = 60.0
PORTS_PER_NODE = 3


class PeerUnavailable(Exception):
    """Apache Kafka is not available on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server under test."""

    bootstrap: str
    pids: tuple[int, ...]
    first_ack_seconds: float
    idle_megabytes: float


def kafka_jars() -> Path:
    """Apache Kafka's jars in the cache folder, fetched by Maven the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "riverrun"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.exists():
        return jars
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerUnavailable(f"{program} is not installed")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in ARTIFACTS
    )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        work = Path(folder)
        (work / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>peers</groupId><artifactId>peers</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        fetched = subprocess.run(
            ["mvn", "-q", "-B", "dependency:copy-dependencies",
             f"-DoutputDirectory={work / 'jars'}"],
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if fetched.returncode:
            raise PeerUnavailable(f"Maven could not fetch Apache Kafka: {fetched.stdout[-300:]}")
        with contextlib.suppress(OSError):  # another process has already installed the jars
            (work / "jars").rename(jars)
    return jars


@contextlib.contextmanager
def kafka(settings: tuple[str, ...] = ()) -> Iterator[Running]:
    """One Apache Kafka node in KRaft mode, with the heap and flags of its own scripts."""
    jars = kafka_jars()
    with tempfile.TemporaryDirectory(prefix="bench-kafka-") as folder:
        work = Path(folder)
        port, controller = find_free_ports(PORTS_PER_NODE), find_free_ports(PORTS_PER_NODE)
        config = work / "server.properties"
        config.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller", "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{controller}",
                    f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                    f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
                    "controller.listener.names=CONTROLLER", f"log.dirs={work / 'data'}",
                    "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    "offsets.topic.replication.factor=1", "group.initial.rebalance.delay.ms=0",
                    *settings,
                ]
            )
            + "\n"
        )  # fmt: skip
        (work / "log4j.properties").write_text("log4j.rootLogger=OFF\n")
        java = ["java", f"-Dlog4j.configuration=file:{work}/log4j.properties", "-cp", f"{jars}/*"]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config)],
            check=True, capture_output=True,
        )  # fmt: skip
        began = time.monotonic()
        process = subprocess.Popen(
            [java[0], *JVM, *java[1:], "kafka.Kafka", str(config)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        with _stopping(process):
            yield _ready(f"127.0.0.1:{port}", (process.pid,), began)


@contextlib.contextmanager
def riverrun(settings: tuple[str, ...] = (), data: Path | None = None) -> Iterator[Running]:
    """One node started by ``riverrun up``."""
    with tempfile.TemporaryDirectory(prefix="bench-riverrun-") as folder:
        port = find_free_ports(PORTS_PER_NODE)
        command = [sys.executable, "-m", "riverrun.cli", "up", "--nodes", "1", "--json"]
        command += ["--data", str(data or Path(folder) / "data"), "--port", str(port)]
        for text in ("group.initial.rebalance.delay.ms=0", *settings):
            command += ["--set", text]
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with _stopping(process):
            running = _ready(f"127.0.0.1:{port}", (), began)
            assert process.stdout is not None
            nodes = json.loads(process.stdout.readline())["nodes"]
            pids = tuple(node["pid"] for node in nodes)
            yield Running(
                bootstrap=running.bootstrap,
                pids=pids,
                first_ack_seconds=running.first_ack_seconds,
                idle_megabytes=_resident(pids),
            )


STARTERS: Final[Mapping[str, Callable[..., contextlib.AbstractContextManager[Running]]]] = {
    "riverrun": riverrun,
    "kafka": kafka,
}


def _ready(bootstrap: str, pids: tuple[int, ...], began: float) -> Running:
    """Wait for the first acknowledged record, by a producer with short retry back-offs."""
    done: list[tuple[object, float]] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap, "acks": "all", "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 20, "topic.metadata.refresh.fast.interval.ms": 10,
            "retry.backoff.ms": 10, "log_level": 0,
        }
    )  # fmt: skip
    producer.produce(
        "first", b"x", on_delivery=lambda error, _: done.append((error, time.monotonic()))
    )
    while not done and time.monotonic() - began < START_SECONDS_MAX:
        producer.poll(0.02)
    if not done or done[0][0] is not None:
        raise PeerUnavailable(f"no record was acknowledged by {bootstrap}: {done}")
    AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10)
    return Running(
        bootstrap=bootstrap,
        pids=pids,
        first_ack_seconds=done[0][1] - began,
        idle_megabytes=_resident(pids),
    )


def _resident(pids: tuple[int, ...]) -> float:
    import psutil

    return float(sum(psutil.Process(pid).memory_info().rss for pid in pids)) / 1e6


@contextlib.contextmanager
def _stopping(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
