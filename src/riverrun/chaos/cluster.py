"""A cluster of real processes that can be killed, paused, restarted and damaged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from riverrun.chaos.faults.disks import mount_small, unmount
from riverrun.chaos.faults.network_control import CLIENT, CONTROLLER, NetworkControl
from riverrun.chaos.faults.proxy import ProxyRoute
from riverrun.chaos.servers import (
    HOST,
    PORTS_PER_NODE,
    SERVERS,
    NodePlace,
    SecureRiverrunServer,
    ServerKind,
)
from riverrun.cli.support.client_config import (
    COMMAND_CONFIG_VARIABLE,
    ClusterAddress,
    read_properties,
)
from riverrun.cli.support.free_ports import find_free_ports
from riverrun.cli.up.secure import ClusterSecurity, prepare

STOP_SECONDS_MAX = 20.0
LOG_TAIL_CHARACTERS = 800


class ClusterFailed(Exception):
    """The cluster did not start, or did not recover in time."""


class NodeState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DOWN = "down"


@dataclass(slots=True)
class ClusterNode:
    place: NodePlace
    process: subprocess.Popen[bytes] | None = None
    state: NodeState = NodeState.DOWN
    incarnation: int = 0

    @property
    def id(self) -> int:
        return self.place.id

    @property
    def pid(self) -> int:
        assert self.process is not None, f"node {self.id} was never started"
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.place.folder / f"node-{self.id}.log"


@dataclass(slots=True, kw_only=True)
class ChaosCluster:
    """``with ChaosCluster(folder=...) as cluster`` starts it, and leaves nothing behind."""

    folder: Path
    count: int = 3
    settings: Mapping[str, str] = field(default_factory=dict)
    peer: str = "riverrun"
    is_secure: bool = False
    """TLS, logins and access control, as with ``riverrun up --secure``."""
    small_disks: Mapping[int, int] = field(default_factory=dict)
    """File system sizes of nodes whose disk a scenario fills."""
    nodes: dict[int, ClusterNode] = field(default_factory=dict)
    _network: NetworkControl | None = None
    _security: ClusterSecurity | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        first = find_free_ports(PORTS_PER_NODE * self.count)
        for number in range(1, self.count + 1):
            home = self.folder / f"home-{number}"
            if number in self.small_disks:
                mount_small(home, self.small_disks[number])
            place = NodePlace(
                id=number,
                folder=self.folder,
                data=home / "data",
                first_port=first + PORTS_PER_NODE * (number - 1),
            )
            home.mkdir(exist_ok=True)
            self.nodes[number] = ClusterNode(place)
        places = [node.place for node in self.nodes.values()]
        if self.is_secure:
            self._security = prepare(self.folder, [place.name for place in places], HOST)
        for place in places:
            self.server.prepare(place, places, self.settings)
        self._network = NetworkControl(
            ProxyRoute(node=str(p.id), channel=channel, port=_port(shown), target_port=_port(real))
            for p in places
            for channel, shown, real in (
                (CLIENT, p.proxied_client, p.client),
                (CONTROLLER, p.proxied_controller, p.controller),
                (CLIENT, p.proxied_internal, p.internal),
            )
        )
        for number in self.nodes:
            self.start(number)

    @property
    def server(self) -> ServerKind:
        return SecureRiverrunServer() if self.is_secure else SERVERS[self.peer]()

    @property
    def network(self) -> NetworkControl:
        assert self._network is not None, "the cluster was never started"
        return self._network

    @property
    def bootstrap(self) -> ClusterAddress:
        addresses = ",".join(node.place.proxied_client for node in self.nodes.values())
        return ClusterAddress.of(addresses, properties=self.login)

    @property
    def login(self) -> dict[str, str]:
        """The client settings of the administrator."""
        if self._security is None:
            return {}
        return read_properties(Path(self._security.properties))

    @property
    def login_environment(self) -> dict[str, str]:
        """The variables with which our commands log in."""
        if self._security is None:
            return {}
        return {COMMAND_CONFIG_VARIABLE: self._security.properties}

    @property
    def controller_login(self) -> dict[str, str]:
        """The client settings for controller listeners, which expect the certificate of a node."""
        if self._security is None:
            return {}
        folder = Path(self._security.ca).parent
        node = next(iter(self.nodes.values())).place
        return {
            "security.protocol": "SSL",
            "ssl.truststore.location": self._security.ca,
            "ssl.keystore.location": str(folder / f"{node.name}.pem"),
        }

    @property
    def running(self) -> list[int]:
        return [n for n, node in self.nodes.items() if node.state is NodeState.RUNNING]

    # Nodes

    def start(self, number: int) -> None:
        node = self.nodes[number]
        assert node.state is NodeState.DOWN, f"node {number} is {node.state}"
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                self.server.command(node.place),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self.server.environment(node.place),
            )
        self.network.process(number, node.pid)
        node.state = NodeState.RUNNING
        node.incarnation += 1

    def kill(self, number: int) -> None:
        node = self.nodes[number]
        self._signal(node, signal.SIGKILL)
        self._wait(node)

    def stop(self, number: int) -> None:
        """Stop a node with SIGTERM, so that it hands over its leaderships."""
        node = self.nodes[number]
        self._signal(node, signal.SIGTERM)
        self._wait(node)

    def kill_together(self, numbers: list[int]) -> None:
        for number in numbers:
            self._signal(self.nodes[number], signal.SIGKILL)
        for number in numbers:
            self._wait(self.nodes[number])

    def pause(self, number: int) -> None:
        self._signal(self.nodes[number], signal.SIGSTOP)
        self.nodes[number].state = NodeState.PAUSED

    def resume(self, number: int) -> None:
        self._signal(self.nodes[number], signal.SIGCONT)
        self.nodes[number].state = NodeState.RUNNING

    def _signal(self, node: ClusterNode, number: signal.Signals) -> None:
        assert node.state is not NodeState.DOWN, f"node {node.id} is not there"
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, number)

    def _wait(self, node: ClusterNode) -> None:
        assert node.process is not None
        try:
            node.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            node.process.kill()
            node.process.wait()
            node.state = NodeState.DOWN
            raise ClusterFailed(
                f"node {node.id} did not stop within {STOP_SECONDS_MAX:.0f} s"
            ) from None
        node.state = NodeState.DOWN

    def impair(
        self,
        number: int,
        *,
        fsync_seconds: float = 0,
        fsync_fails: float = 0,
        clock_seconds: float = 0,
    ) -> None:
        """Set a node's syncs slow or failing, or its clock wrong, until the next call."""
        agent_file = {
            "fsync_seconds": fsync_seconds,
            "fsync_fails": fsync_fails,
            "clock_seconds": clock_seconds,
        }
        path = self.nodes[number].place.agent_file
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(agent_file))
        draft.rename(path)

    def wipe(self, number: int) -> None:
        node = self.nodes[number]
        assert node.state is NodeState.DOWN, f"node {number} is {node.state}"
        shutil.rmtree(node.place.data)

    def recover(self) -> None:
        """End all faults and start all nodes."""
        self.network.heal()
        for number, node in self.nodes.items():
            self.impair(number)
            if node.state is NodeState.PAUSED:
                self.resume(number)
            elif node.state is NodeState.DOWN:
                self.start(number)

    def died(self) -> list[str]:
        """Nodes that exited by themselves, with the end of their logs."""
        found = []
        for node in self.nodes.values():
            if node.process is None or node.state is NodeState.DOWN:
                continue
            code = node.process.poll()
            if code is not None:
                found.append(f"node {node.id} ended with code {code}: {self.log_tail(node.id)}")
                node.state = NodeState.DOWN
        return found

    def log_tail(self, number: int, characters: int = LOG_TAIL_CHARACTERS) -> str:
        path = self.nodes[number].log
        return path.read_text(errors="replace")[-characters:] if path.exists() else ""

    def close(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                for sent in (signal.SIGCONT, signal.SIGTERM):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(node.pid, sent)
        for node in self.nodes.values():
            if node.process is not None:
                try:
                    node.process.wait(STOP_SECONDS_MAX / 4)
                except subprocess.TimeoutExpired:
                    node.process.kill()
                    node.process.wait()
        if self._network is not None:
            self._network.close()
            self._network = None
        for number in self.small_disks:
            unmount(self.folder / f"home-{number}")


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def until(condition: Callable[[], object], *, seconds: float, what: str) -> None:
    """Poll a condition of real processes."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterFailed(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)
