"""`riverrun start`: one address defines a node's listeners, and its seeds name the other nodes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from riverrun.cli.start import reached_at
from riverrun.server.settings import NodeSettings
from tests.cli.commands import Cli
from tests.processes import executable, free_ports, until


def places(address: str, **texts: str) -> dict[str, str]:
    given = {name.replace("_", "."): text for name, text in texts.items()}
    found = reached_at(address, given)
    NodeSettings.from_texts(found)
    return found


def test_a_host_name_is_advertised_and_all_interfaces_are_bound() -> None:
    found = places("node1:9092")
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:9092,CONTROLLER://0.0.0.0:9093"
    told = "PLAINTEXT://node1:9092,CONTROLLER://node1:9093"
    assert found["advertised.listeners"] == told
    assert found["http.listener"] == "0.0.0.0:9094"


def test_a_loopback_address_binds_only_the_loopback() -> None:
    found = places("127.0.0.1:22010")
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:22010,CONTROLLER://127.0.0.1:22011"
    assert found["http.listener"] == "127.0.0.1:22012"


def test_each_role_has_its_own_listener() -> None:
    assert places("node1:9092", process_roles="broker")["listeners"] == "PLAINTEXT://0.0.0.0:9092"
    controller = places("node1:9093", process_roles="controller")
    assert controller["listeners"] == "CONTROLLER://0.0.0.0:9093"
    assert controller["advertised.listeners"] == "CONTROLLER://node1:9093"


def test_explicit_listeners_are_kept() -> None:
    listeners = "PLAINTEXT://0.0.0.0:7000,CONTROLLER://0.0.0.0:7100"
    found = places("node1:9092", listeners=listeners)
    assert found["listeners"] == listeners
    assert found["advertised.listeners"] == "PLAINTEXT://node1:9092"
    controller = NodeSettings.from_texts(found).controller_advertised()
    assert controller is not None
    assert (controller.host, controller.port) == ("node1", 7100)


@pytest.mark.parametrize("address", ["node1", "node1:99999", "a:1,b:2"])
def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(typer.Exit) as end:
        reached_at(address, {})
    assert end.value.exit_code == 2


class Nodes:
    """Real processes of `riverrun start`, each with its own flags."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.port = free_ports(10 * count)
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def client(self, number: int) -> str:
        return f"127.0.0.1:{self.port + 10 * (number - 1)}"

    def start(self, number: int, *words: str) -> None:
        with open(self.folder / f"{number}.log", "ab") as log:
            self.running[number] = subprocess.Popen(
                [
                    executable(), "start", "--node-id", str(number),
                    "--data", str(self.folder / str(number)),
                    "--advertised-addr", self.client(number), *words,
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text()

    def wait(self, number: int, words: str) -> None:
        until(lambda: words in self.log(number), seconds=60, what=f"{words}: {self.log(number)}")

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.kill()
        process.wait()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, 4)
    yield made
    for number in list(made.running):
        made.kill(number)


def test_three_nodes_form_a_cluster_and_a_wiped_one_votes_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    seeds = ["--seed-nodes", ",".join(nodes.client(number) for number in (1, 2, 3))]
    for number in (1, 2):
        nodes.start(number, *seeds, "--default-replication-factor", "3")
    nodes.wait(1, "waiting for a cluster")
    nodes.start(3, *seeds, "--rack", "r3")
    for number in (1, 2, 3):
        nodes.wait(number, "node is up")
    cli = Cli(nodes.client(1))

    def voters() -> dict[int, str]:
        quorum = json.loads(cli.run("quorum", "status", "--json"))
        rows = [row for row in quorum["replicas"] if row["role"] != "observer"]
        return {row["id"]: row["directory_id"] for row in rows}

    before = voters()
    assert sorted(before) == [1, 2, 3]
    assert cli.rows("cluster", "nodes")[2][2] == "r3"

    nodes.start(4, *seeds, "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qg")
    assert nodes.running.pop(4).wait(60) == 2
    assert "belongs to MkU3OEVBNTcwNTJENDM2Qg" in nodes.log(4)

    nodes.kill(3)
    shutil.rmtree(tmp_path / "3")
    nodes.start(3, *seeds)
    nodes.wait(3, "joined a cluster")
    until(
        lambda: sorted(now := voters()) == [1, 2, 3] and now[3] != before[3],
        seconds=60,
        what="the wiped node votes again",
    )


def test_unusable_certificate_stops_the_start_with_the_reason(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            executable(), "start", "--data", str(tmp_path / "data"),
            "--set", "listeners=SSL://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "--set", "http.listener=",
            "--set", "ssl.keystore.location=/missing.pem",
        ],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "ssl.keystore.location" in done.stdout + done.stderr
    assert "cannot read it" in done.stdout + done.stderr
