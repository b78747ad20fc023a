"""Real servers for tests: riverrun by its command line, or Apache Kafka for comparison.

`with serve(folder) as server:` starts the peer in the environment variable PEER (default riverrun)
on free ports, with logs in the folder, and stops all processes at the end.
"""

import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.peers import find_java, find_kafka, need
from tests.plain_client import ConnectionClosed, PlainClient

START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 20
KAFKA_CLUSTER_ID = "cml2ZXJydW4tdGVzdHMtMQ"
KAFKA_JVM = ("-Xmx512M", "-Xms512M", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1")
# Settings whose defaults differ and would change responses.
COMMON_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
LOG_TAIL_CHARACTERS = 6000


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports, below the ephemeral range."""
    first, last = os.environ.get("RIVERRUN_TEST_PORTS", "20000-31999").split("-")
    for _ in range(200):
        port = random.randrange(int(first), int(last) - count + 1)
        with contextlib.ExitStack() as stack:
            try:
                for number in range(port, port + count):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no {count} free ports in a row in {first}-{last}")


def until(condition: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """Poll a condition of a real process and return its first truthy value."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {what}")
        pause.wait(0.02)


class Server:
    """One node as a process. `kill` and `restart` act on `pid`, the node's own process."""

    peer: str
    address: tuple[str, int]
    data: Path
    pid: int

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.settings = {**COMMON_SETTINGS, **settings}
        self.started: list[subprocess.Popen[str]] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def client(self, *, timeout_seconds: float = 30) -> PlainClient:
        return PlainClient(self.address, timeout_seconds=timeout_seconds)

    def start(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        """Start the node again with the same data and address."""
        raise NotImplementedError

    def spawn(self, arguments: list[str], *, stdout: Any = None) -> subprocess.Popen[str]:
        log = open(self.folder / "server.log", "a")  # noqa: SIM115 (the process keeps it)
        process = subprocess.Popen(
            arguments, stdout=stdout or log, stderr=log, text=True, start_new_session=True
        )
        log.close()
        self.started.append(process)
        return process

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait_gone()

    def wait_gone(self, seconds: float = STOP_SECONDS_MAX) -> None:
        for process in self.started:
            if process.pid == self.pid:
                process.wait(seconds)
                return
        until(lambda: not _is_running(self.pid), seconds=seconds, what=f"process {self.pid} ends")

    def is_running(self) -> bool:
        return _is_running(self.pid)

    def wait_ready(self, seconds: float = START_SECONDS_MAX) -> None:
        until(self._responds, seconds=seconds, what=f"{self.bootstrap} responds: {self.logs()}")

    def wait_for_coordinator(self) -> None:
        """Wait until groups are served; the first request creates the offsets topic."""
        with self.client() as client:
            until(
                lambda: _serves_groups(client),
                seconds=START_SECONDS_MAX,
                what=f"{self.bootstrap} coordinates groups",
            )

    def _responds(self) -> bool:
        if all(process.poll() is not None for process in self.started):
            raise RuntimeError(f"{self.peer} exited during its start: {self.logs()}")
        try:
            with self.client(timeout_seconds=5) as client:
                response = client.request("metadata", 12, {"topics": []})
        except (OSError, ConnectionClosed):
            return False
        return bool(response["brokers"])

    def logs(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:] if path.exists() else ""

    def stop_all(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.started:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, number)
            for process in self.started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS_MAX)
        for process in self.started:
            if process.stdout is not None:
                process.stdout.close()


def executable() -> str:
    """The `riverrun` command of the environment that runs the tests."""
    return str(Path(sys.executable).with_name("riverrun"))


class Riverrun(Server):
    peer = "riverrun"

    def start(self) -> None:
        port = free_ports(3)
        arguments = [executable(), "up", "--nodes", "1", "--port", str(port), "--json"]
        arguments += ["--data", str(self.folder / "data")]
        for name, value in self.settings.items():
            arguments += ["--set", f"{name}={value}"]
        process = self.spawn(arguments, stdout=subprocess.PIPE)
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], START_SECONDS_MAX)
        line = process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"riverrun up printed no line of JSON: {self.logs()}")
        self._take(json.loads(line)["nodes"][0])

    def _take(self, node: Mapping[str, Any]) -> None:
        """Take the values of a node from the output of `riverrun up`."""
        host, port_text = node["client"].rsplit(":", 1)
        self.address = (host, int(port_text))
        self.http = node["http"]
        self.pid = node["pid"]
        self.data = Path(node["data"])
        self.config = Path(node["config"])

    def restart(self) -> None:
        process = self.spawn([executable(), "start", "--config", str(self.config)])
        self.pid = process.pid
        self.wait_ready()


class ApacheKafka(Server):
    peer = "kafka"

    def start(self) -> None:
        self.libraries = need(find_kafka)
        port = free_ports(3)
        self.address = ("127.0.0.1", port)
        self.data = self.folder / "data"
        self.config = self.folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{port + 1}",
            "listeners": self.listeners(port),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data),
            **self.settings,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        self.config.write_text(lines)
        self._java("kafka.tools.StorageTool", "format", "-t", KAFKA_CLUSTER_ID).wait(60)
        self.restart()

    def listeners(self, port: int) -> str:
        return f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"

    def restart(self) -> None:
        self.pid = self._java("kafka.Kafka").pid
        self.wait_ready()

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[str]:
        log4j = f"-Dlog4j.configuration=file:{self.libraries}/log4j.properties"
        config = ["-c", str(self.config)] if arguments else [str(self.config)]
        command = [need(find_java), *KAFKA_JVM, log4j, "-cp", f"{self.libraries}/*", main]
        return self.spawn([*command, *arguments, *config])


PEERS: dict[str, type[Server]] = {"riverrun": Riverrun, "kafka": ApacheKafka}


@contextlib.contextmanager
def serve(
    folder: Path, settings: Mapping[str, str] | None = None, *, peer: str | None = None
) -> Iterator[Any]:
    """A running node of `peer`, by default of the environment variable PEER."""
    server = PEERS[peer or os.environ.get("PEER", "riverrun")](folder, settings or {})
    try:
        server.start()
        yield server
    finally:
        server.stop_all()
        if not os.environ.get("KEEP"):
            shutil.rmtree(server.folder, ignore_errors=True)


def _serves_groups(client: PlainClient) -> bool:
    fields: dict[str, Any] = {"key_type": 0, "coordinator_keys": ["any"]}
    found = client.request("find_coordinator", 4, fields)
    if found["coordinators"][0]["error_code"] != "NONE":
        return False
    fields = {"groups": [{"group_id": "any", "topics": None}]}
    response = client.request("offset_fetch", 8, fields)
    return bool(response["groups"][0]["error_code"] == "NONE")


def _is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # ProcessLookupError if it ends during the read
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state != "Z"


def outside_make() -> dict[str, str]:
    """The environment without the variables of a `make` that runs the tests."""
    of_make = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")
    return {name: text for name, text in os.environ.items() if name not in of_make}
