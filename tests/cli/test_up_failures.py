"""`riverrun up` with problems: ports in use, nodes that do not start, nodes that end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from riverrun.cli.supervision.log_reasons import reason_in
from riverrun.cli.up.files import NodeFiles, plan, prepare_first_start
from riverrun.cli.up.messages import ourselves
from riverrun.cli.up.ports import refusal, taken_ports
from tests.processes import Server, executable, free_ports

SECONDS_MAX = 60
BAD_SETTING = 'log.retention.hours = "soon"\n'
WHY = "Invalid value soon for configuration log.retention.hours"


def run(data: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [executable(), "up", "--data", str(data), *words],
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def started(data: Path, *words: str) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [executable(), "up", "--data", str(data), "--port", str(free_ports(23)), *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=SECONDS_MAX)


def told(cluster: list[NodeFiles]) -> str:
    return refusal(taken_ports(cluster), cluster, "riverrun")


@pytest.mark.parametrize(("above", "purpose"), [(10, "clients"), (11, "controllers"), (12, "HTTP")])
def test_one_port_in_use_prevents_the_start_of_all_nodes(
    tmp_path: Path, above: int, purpose: str
) -> None:
    port = free_ports(23)
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", port + above)):
        done = run(data, "--port", str(port))
    assert done.returncode == 2
    first, remedy = done.stderr.splitlines()
    used = f"port {port + above} for {purpose} (node 2) is in use"
    assert first == f"riverrun: nothing was started: {used}"
    assert "choose others with --port " in remedy and "make up PORT=" in remedy
    assert not data.exists()


def test_suggested_ports_are_free(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, free_ports(23))
    with socket.create_server(("127.0.0.1", cluster[1].port)):
        advised = int(told(cluster).partition("--port ")[2].split()[0])
    assert taken_ports(plan(tmp_path, 3, advised)) == []


def test_nodes_with_a_cluster_are_not_told_to_change_ports(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, free_ports(23))
    prepare_first_start(cluster, None)
    with socket.create_server(("127.0.0.1", cluster[1].port + 2)):
        said = told(cluster)
    assert f"the nodes in {tmp_path} know each other by their ports: stop the other process" in said
    assert "another --data" in said
    assert "choose others" not in said


def test_ports_of_a_cluster_that_has_just_stopped_are_free(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 1, free_ports(3))
    with socket.create_server(("127.0.0.1", cluster[0].port)) as server:
        client = socket.create_connection(("127.0.0.1", cluster[0].port))
        served, _ = server.accept()
        served.close()  # the side that closes first keeps the port in TIME_WAIT
        client.close()
    with socket.socket() as strict, pytest.raises(OSError, match="in use"):
        strict.bind(("127.0.0.1", cluster[0].port))
    assert taken_ports(cluster) == []


def test_a_second_up_reports_the_running_cluster(supervised_node: Server, tmp_path: Path) -> None:
    """On the same directory, and on the same ports with another one."""
    port = supervised_node.address[1]
    data = supervised_node.data.parent
    done = run(data, "--nodes", "1", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"riverrun: a cluster runs already with {data} (process ")
    assert f"{ourselves()} down --data {data}`" in done.stderr
    done = run(tmp_path / "data", "--nodes", "1", "--port", str(port))
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(f"ports {port}-{port + 2} (node 1) are in use")
    status = f"{ourselves()} cluster status --bootstrap {supervised_node.bootstrap}"
    assert lines[1] == f"  a cluster seems to run here already; see: {status}"
    assert lines[2].startswith("  choose others with --port ")


def test_a_cluster_on_its_own_ports_is_to_be_stopped_first(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 3, free_ports(23))
    prepare_first_start(cluster, None)
    with contextlib.ExitStack() as stack:
        for node in cluster:
            for port in range(node.port, node.port + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        assert "stop that first" in told(cluster)


def test_many_ports_in_use_are_reported_in_few_lines(tmp_path: Path) -> None:
    cluster = plan(tmp_path, 7, free_ports(63))
    with contextlib.ExitStack() as stack:
        for node in cluster:
            stack.enter_context(socket.create_server(("127.0.0.1", node.port)))
        lines = told(cluster).splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("and those of 2 more nodes are in use")


def test_the_missing_node_and_its_reason_are_printed_last(tmp_path: Path) -> None:
    (tmp_path / "node-2.toml").write_text(BAD_SETTING)
    with started(tmp_path) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "up" in line) == "2 of 3 nodes are up.\n"
        end = next(line for line in lines if "; " in line and "Ctrl-C" not in line)
        assert end.startswith(f"2 of 3 nodes are up; node 2 is not: {WHY}")


def test_json_names_the_missing_node_and_up_ends_with_the_last_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "node-2.toml").write_text(BAD_SETTING)
    with started(tmp_path, "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert [node["id"] for node in ready["nodes"]] == [1, 3]
        [missing] = ready["missing"]
        assert missing["id"] == 2
        assert missing["reason"].startswith(WHY)
        for node in ready["nodes"]:
            os.kill(node["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    last = said.splitlines()[-1]
    assert last.startswith("riverrun: all nodes have ended")
    assert str(tmp_path) in last


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("riverrun: Invalid value x", "Invalid value x"),
        ("09:05 [error    ] cannot start      node=2 error=\"at ('h', 1): in use\" x='y'",
         "at ('h', 1): in use"),
        ("09:05 [error    ] cannot start      error='it\\'s \" odd' node=2", "it's \" odd"),
        ("09:05 [error    ] cannot start      node=2 error=odd", "odd"),
        ("09:05 [error    ] the disk is gone  node=2", "the disk is gone"),
        ('{"level": "error", "event": "cannot start", "error": "odd"}', "odd"),
        ('{"level": "info", "event": "stopping", "reason": "odd"}', None),
        ("09:05 [info     ] stopping          node=2 reason=SIGTERM", None),
        ("{not json", None),
    ],
)  # fmt: skip
def test_the_reason_is_found_in_a_nodes_log(line: str, reason: str | None) -> None:
    assert reason_in(line) == reason


def test_the_readmes_commands_stop_and_start_the_same_node() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    killed = re.findall(r"riverrun stop --kill --config (\S*?node-2\.toml)`", text)
    restarted = re.findall(r"riverrun start --config (\S*?node-2\.toml)`", text)
    assert killed == restarted == ["data/node-2.toml"]
