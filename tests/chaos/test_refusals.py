"""A node refuses a wrong data directory with a message that names the cause."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import Riverrun, executable, free_ports, serve

pytestmark = pytest.mark.chaos


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Riverrun]:
    """A node that was started and stopped cleanly."""
    with serve(tmp_path / "node", peer="riverrun") as server:
        with server.client() as client:
            client.request("metadata", 12, {"topics": []})
        server.kill(signal.SIGTERM)
        server.wait_gone()
        yield server


def refusal(server: Riverrun, *more: str) -> str:
    """The output of a start that must fail."""
    done = subprocess.run(
        [executable(), "start", "--config", str(server.config), *more],
        text=True,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0, "the node started"
    output = done.stdout + done.stderr
    assert "Traceback" not in output, output
    return output.lower()


def test_node_refuses_a_directory_in_use(tmp_path: Path) -> None:
    with serve(tmp_path / "node", peer="riverrun") as server:
        output = refusal(server)
        assert "use" in output and str(server.data).lower() in output, output
        assert server.is_running()
        with server.client() as client:
            assert client.request("metadata", 12, {"topics": []})["brokers"]


def test_node_refuses_a_directory_of_another_cluster(stopped: Riverrun) -> None:
    """The id of one cluster with the metadata of another, as after a wrong restore."""
    path = stopped.data / "meta.properties"
    other = re.sub("cluster.id=.*", "cluster.id=b3RoZXItY2x1c3Rlci0tMQ", path.read_text())
    path.write_text(re.sub("directory.id=.*", "directory.id=b3RoZXItZGlyZWN0b3J5MQ", other))
    assert "cluster" in refusal(stopped)


def test_node_refuses_a_directory_of_another_node(stopped: Riverrun) -> None:
    path = stopped.data / "meta.properties"
    path.write_text(re.sub("node.id=.*", "node.id=7", path.read_text()))
    output = refusal(stopped)
    assert "node" in output and "7" in output, output


def test_node_refuses_a_directory_of_a_newer_version(stopped: Riverrun) -> None:
    path = stopped.data / "meta.properties"
    path.write_text(re.sub("version=.*", "version=99", path.read_text()))
    assert "version" in refusal(stopped)


def test_node_refuses_unreadable_meta_properties(stopped: Riverrun) -> None:
    (stopped.data / "meta.properties").write_bytes(b"\x00\xff nonsense")
    assert "meta.properties" in refusal(stopped)


def test_node_refuses_a_file_as_its_directory(stopped: Riverrun) -> None:
    shutil.rmtree(stopped.data)
    stopped.data.write_text("a file")
    assert str(stopped.data).lower() in refusal(stopped)


def test_node_refuses_a_directory_without_permission(stopped: Riverrun) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything; run as another user to see this refusal")
    stopped.data.chmod(0)
    try:
        assert "permission" in refusal(stopped)
    finally:
        stopped.data.chmod(0o700)


def test_node_refuses_a_port_in_use(stopped: Riverrun, tmp_path: Path) -> None:
    with socket.create_server(stopped.address):
        output = refusal(stopped)
    assert str(stopped.address[1]) in output, output


def test_up_refuses_unknown_settings(tmp_path: Path) -> None:
    where = ["--data", str(tmp_path / "data"), "--port", str(free_ports(23))]
    done = subprocess.run(
        [executable(), "up", *where, "--set", "no.such=1"],
        text=True,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert "no.such" in output and "Traceback" not in output, output
