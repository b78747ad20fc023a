"""`riverrun start --processes`: the brokers of a host run as one unit of real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from riverrun.ports.files import lock_owner
from tests.cli.commands import Cli
from tests.processes import executable, free_ports, until

SECONDS_MAX = 90
RECORDS = 300
PORTS_OF_A_HOST = 20


class Hosts:
    """Units of two brokers each. They share this machine, so each has its own name as a rack."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.first_port = free_ports(PORTS_OF_A_HOST * count)
        self.count = count
        self.units: dict[int, subprocess.Popen[bytes]] = {}

    def client(self, host: int) -> str:
        return f"127.0.0.1:{self.first_port + PORTS_OF_A_HOST * (host - 1)}"

    def data(self, host: int) -> Path:
        return self.folder / f"host-{host}"

    def command(self, host: int, *words: str, processes: str = "2") -> list[str]:
        seeds = ",".join(self.client(one) for one in range(1, self.count + 1))
        return [
            executable(), "start", "--node-id", str(host), "--processes", processes,
            "--data", str(self.data(host)), "--advertised-addr", self.client(host),
            *(["--seed-nodes", seeds] if self.count > 1 else []), *words,
        ]  # fmt: skip

    def start(self, host: int, *words: str, processes: str = "2", **variables: str) -> None:
        with open(self.folder / f"{host}.log", "ab") as log:
            self.units[host] = subprocess.Popen(
                self.command(host, *words, processes=processes),
                stdout=log, stderr=log, env={**os.environ, **variables},
            )  # fmt: skip

    def log(self, host: int) -> str:
        return (self.folder / f"{host}.log").read_text()

    def wait(self, host: int, text: str, times: int = 1) -> None:
        until(
            lambda: self.log(host).count(text) >= times,
            seconds=SECONDS_MAX,
            what=f"{text} in the log of host {host}",
        )

    def broker_process(self, host: int, node: int) -> int | None:
        return lock_owner(str(self.data(host) / f"node-{node}" / ".lock"))

    def terminate(self, host: int) -> int:
        unit = self.units.pop(host)
        unit.terminate()
        return unit.wait(SECONDS_MAX)

    def close(self) -> None:
        for unit in self.units.values():
            unit.terminate()
        for unit in self.units.values():
            try:
                unit.wait(SECONDS_MAX)
            finally:
                unit.kill()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 3)
    yield made
    made.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 1)
    yield made
    made.close()


def refused(command: Sequence[str], code: int, **variables: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    return done.stderr


def partitions(cli: Cli, topic: str) -> list[dict[str, Any]]:
    [described] = json.loads(cli.run("topics", "describe", topic, "--json"))
    found: list[dict[str, Any]] = described["partitions"]
    return found


@pytest.mark.slow
def test_replicas_are_on_three_hosts_and_a_killed_broker_loses_nothing(hosts: Hosts) -> None:
    for number in (1, 2, 3):
        hosts.start(number, "--rack", f"host-{number}", "--set", "min.insync.replicas=2")
    for number in (1, 2, 3):
        hosts.wait(number, "2 brokers are up, rack host-")
    cli = Cli(hosts.client(1))
    cli.run("topics", "create", "orders", "--partitions", "6", "--replication-factor", "3")
    status = json.loads(cli.run("cluster", "status", "--json"))
    racks = {node["id"]: node["rack"] for node in status["brokers"]}
    assert sorted(racks) == [1, 2, 3, 1001, 1002, 1003]
    assert sorted(n["id"] for n in status["brokers"] if n["quorum"] != "observer") == [1, 2, 3]
    for partition in partitions(cli, "orders"):
        assert len({racks[replica] for replica in partition["replicas"]}) == 3, partition

    written = "".join(f"{number}\n" for number in range(RECORDS))
    cli.write("orders", written, "--acks", "all")
    before = hosts.broker_process(2, 1002)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    cli.write("orders", "".join(f"{RECORDS + n}\n" for n in range(RECORDS)), "--acks", "all")
    hosts.wait(2, "node 1002 ended by signal 9; it starts again in 0.5 s")
    after = until(
        lambda: hosts.broker_process(2, 1002), seconds=SECONDS_MAX, what="a new process of 1002"
    )
    assert after != before
    until(
        lambda: all(len(one["isr"]) == 3 for one in partitions(cli, "orders")),
        seconds=SECONDS_MAX,
        what="all replicas in sync again",
    )
    assert sorted(map(int, cli.read("orders", "--from-beginning", "--until-end").split())) == list(
        range(2 * RECORDS)
    )
    assert hosts.terminate(2) == 0
    assert sorted(map(int, cli.read("orders", "--from-beginning", "--until-end").split())) == list(
        range(2 * RECORDS)
    )


def test_unit_grows_but_does_not_leave_out_replicas(host: Hosts) -> None:
    host.start(1)
    host.wait(1, "2 brokers are up, rack 127.0.0.1")
    cli = Cli(host.client(1))
    cli.run("topics", "create", "orders", "--partitions", "4", "--replication-factor", "1")
    cli.write("orders", "one\n")
    stopped = cli.done("stop", "--data", str(host.data(1)))
    assert stopped.stdout.decode().startswith(f"The unit of 2 brokers in {host.data(1)} (process ")
    assert host.units.pop(1).wait(SECONDS_MAX) == 0

    message = refused(host.command(1, processes="1"), 2)
    assert "processes=1 leaves out brokers that hold replicas: 1001 (2 partitions)" in message
    assert "riverrun cluster decommission 1001" in message
    single = [executable(), "start", "--node-id", "1", "--data", str(host.data(1))]
    assert "holds the directories of several nodes: add --processes N" in refused(single, 2)

    host.start(1, processes="3")
    host.wait(1, "3 brokers are up")
    assert [row["id"] for row in json.loads(cli.run("cluster", "status", "--json"))["brokers"]] == [
        1, 1001, 2001,
    ]  # fmt: skip
    assert cli.read("orders", "--from-beginning", "--until-end") == "one\n"
    assert f"{host.data(1)} is in use by process" in refused(host.command(1), 2)
    assert host.terminate(1) == 0


def test_a_decommissioned_broker_can_be_left_out(host: Hosts) -> None:
    host.start(1)
    host.wait(1, "2 brokers are up")
    cli = Cli(host.client(1))
    cli.run("topics", "create", "orders", "--partitions", "4", "--replication-factor", "1")
    cli.write("orders", "one\ntwo\nthree\n")
    cli.run("cluster", "decommission", "1001", "--yes")
    assert host.terminate(1) == 0
    host.start(1, processes="1")
    host.wait(1, "1 broker is up")
    status = json.loads(cli.run("cluster", "status", "--json"))
    assert [row["id"] for row in status["brokers"]] == [1]
    assert status["problems"] == []
    assert sorted(cli.read("orders", "--from-beginning", "--until-end").split()) == [
        "one", "three", "two",
    ]  # fmt: skip


def test_nothing_starts_if_a_port_is_in_use(host: Hosts) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", host.first_port + 10))
        other.listen()
        message = refused(host.command(1), 1)
    assert f"node 1001 cannot listen on 127.0.0.1:{host.first_port + 10}" in message
    assert "stop the process that uses the port, or choose other ports" in message
    assert not (host.data(1) / "node-1").exists()


def test_directory_that_cannot_be_made_is_reported(host: Hosts) -> None:
    host.data(1).write_text("a file")
    assert f"cannot use {host.data(1)}" in refused(host.command(1), 1)


def test_invalid_flags_are_refused(host: Hosts) -> None:
    assert "a number from 1 to 256, or auto" in refused(host.command(1, processes="0"), 2)
    assert "a number from 1 to 256, or auto" in refused(host.command(1, processes="two"), 2)
    assert "unknown setting" in refused(host.command(1, "--set", "num.partition=3"), 2)
    assert not host.data(1).exists()


def test_sockets_of_a_service_manager_are_refused(host: Hosts) -> None:
    """LISTEN_PID must be the process itself, so a shell becomes the program."""
    shell = 'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    message = refused(["/bin/sh", "-c", shell, "sh", *host.command(1)], 2)
    assert "remove the socket unit, or start one process" in message


def test_a_broker_that_cannot_start_ends_the_unit(host: Hosts) -> None:
    """The directory of the second process belongs to another node."""
    directory = host.data(1) / "node-1001"
    directory.mkdir(parents=True)
    (directory / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=7\n")
    host.start(1)
    assert host.units[1].wait(SECONDS_MAX) == 2, host.log(1)
    assert "riverrun: node 1001 could not start: " in host.log(1)
    assert "brokers are up" not in host.log(1)


def test_json_log_stays_json_and_the_manager_learns_when_all_are_ready(
    host: Hosts, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"riverrun-test-{os.getpid()}"
        manager.bind(f"\0{address}")
        manager.settimeout(SECONDS_MAX)
        variables = {"NOTIFY_SOCKET": f"@{address}", "WATCHDOG_USEC": "2000000"}
        host.start(1, "--set", "log.format=json", **variables)
        assert manager.recv(512) == b"EXTEND_TIMEOUT_USEC=60000000"
        assert manager.recv(512) == b"READY=1"
        assert manager.recv(512) == b"WATCHDOG=1"
        assert all((host.data(1) / f"node-{one}" / ".lock").exists() for one in (1, 1001))
        # A broker whose event loop hangs is killed and started again.
        hung = host.broker_process(1, 1001)
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        host.wait(1, "node 1001 does not respond; killing it")
        host.wait(1, "node is up", times=3)
        assert host.terminate(1) == 0
    rows = [json.loads(line) for line in host.log(1).splitlines()]
    assert {row.get("node") for row in rows} == {1, 1001, None}
    assert {"event", "level", "timestamp"} <= set.intersection(*(set(row) for row in rows))


def test_a_killed_unit_takes_its_brokers_with_it(host: Hosts) -> None:
    host.start(1)
    host.wait(1, "2 brokers are up")
    done = Cli(host.client(1)).done("stop", "--data", str(host.data(1)), "--kill")
    assert done.stdout.decode().endswith("was killed.\n")
    assert host.units.pop(1).wait(SECONDS_MAX) == -signal.SIGKILL
    assert host.broker_process(1, 1) is None
    assert host.broker_process(1, 1001) is None
    assert "stopping" not in host.log(1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_auto_counts_the_cores_of_the_affinity_mask(host: Hosts) -> None:
    """Pinned to one core, the program starts one broker."""
    script = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); " + (
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-c", script, *host.command(1, processes="auto")]
    with open(host.folder / "1.log", "ab") as log:
        host.units[1] = subprocess.Popen(command, stdout=log, stderr=log)
    host.wait(1, "1 broker is up")
    assert host.terminate(1) == 0


@pytest.mark.slow
def test_a_reload_by_the_service_manager_restarts_nothing(host: Hosts) -> None:
    host.start(1)
    host.wait(1, "2 brokers are up")
    before = [host.broker_process(1, node) for node in (1, 1001)]
    host.units[1].send_signal(signal.SIGHUP)
    Cli(host.client(1)).run("topics", "create", "t", "--partitions", "2")
    assert [host.broker_process(1, node) for node in (1, 1001)] == before
    assert host.units[1].poll() is None
    assert "ended" not in host.log(1)
    assert host.terminate(1) == 0
