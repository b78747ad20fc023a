"""The pytest plugin, in processes of its own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from riverrun.testing import Cluster
from riverrun.testing.operations import OPERATION_SECONDS_MAX
from tests.testing.plugin_runs import assert_passed, run_pytest

ROOT = Path(__file__).parent.parent.parent

FIXTURES = """
def test_first(riverrun_cluster, riverrun_topic):
    riverrun_cluster.produce(riverrun_topic, ["one"])
    assert len(riverrun_cluster.records(riverrun_topic)) == 1
    assert "test_first" in riverrun_topic

def test_topics_are_new(riverrun_cluster, riverrun_topic):
    assert riverrun_cluster.records(riverrun_topic) == []
"""

SHARED = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(8))
def test_shared(riverrun_cluster, riverrun_topic, number):
    riverrun_cluster.produce(riverrun_topic, [str(number)])
    assert len(riverrun_cluster.records(riverrun_topic)) == 1
    with open("addresses", "a") as file:
        worker = os.environ["PYTEST_XDIST_WORKER"]
        print(worker, riverrun_cluster.bootstrap, riverrun_cluster._own().folder, file=file)
"""

FAILING = """
def test_failing(riverrun_cluster):
    assert False
"""

SETTINGS = """
import pytest

@pytest.fixture(scope="session")
def riverrun_settings():
    return {"num.partitions": 4}
"""

USES_SETTINGS = """
def test_settings(riverrun_cluster):
    topic = riverrun_cluster.topic(partitions=-1)
    assert riverrun_cluster.leader(topic, 3) in riverrun_cluster.nodes
    assert len(riverrun_cluster.nodes) == 2
"""


def test_the_package_declares_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["entry-points"]["pytest11"]["riverrun"]
    assert declared == "riverrun.testing.pytest_plugin"


def test_the_plugin_loads_nothing_until_a_fixture_is_used() -> None:
    program = "import riverrun.testing.pytest_plugin, sys; print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = [name for name in found.stdout.split() if name.startswith("riverrun")]
    assert loaded == ["riverrun", "riverrun.testing", "riverrun.testing.pytest_plugin"]
    assert not {"msgspec", "uvloop"} & set(found.stdout.split())


def test_the_plugin_can_be_disabled(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(riverrun_topic): ...")
    done = run_pytest(tmp_path, "-p", "no:riverrun")
    assert "fixture 'riverrun_topic' not found" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of two tests that pass and one that fails."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "test_it.py").write_text(FIXTURES + FAILING)
    return run_pytest(folder).stdout


def test_fixtures_give_a_cluster_and_a_new_topic(output: str) -> None:
    assert "1 failed, 2 passed" in output, output


def test_a_failed_test_shows_the_log(output: str) -> None:
    assert "riverrun log" in output
    assert "node is up" in output


def test_xdist_workers_share_one_cluster(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_it.py").write_text(SHARED)
    assert_passed(run_pytest(tmp_path, "-n", "2"), 8)
    rows = [line.split() for line in (tmp_path / "addresses").read_text().splitlines()]
    workers, addresses, folders = ({row[at] for row in rows} for at in range(3))
    assert len(workers) == 2
    assert len(addresses) == 1
    assert not any(Path(folder).exists() for folder in folders)


def test_a_running_cluster_is_used_and_left_clean(tmp_path: Path, kafka: Cluster) -> None:
    (tmp_path / "test_it.py").write_text(FIXTURES)
    assert_passed(run_pytest(tmp_path, "--riverrun-bootstrap", kafka.bootstrap), 2)


@pytest.mark.parametrize(
    ("address", "saying"),
    [
        ("127.0.0.1:1", "no node answers: 127.0.0.1:1 (connection refused)"),
        ("nowhere", "'nowhere' is not an address like 127.0.0.1:9092"),
    ],
)
def test_an_address_without_a_cluster_fails_once_and_soon(
    tmp_path: Path, address: str, saying: str
) -> None:
    """The operations of a test would wait 30 s each."""
    (tmp_path / "test_it.py").write_text(FIXTURES)
    done = run_pytest(tmp_path, "--riverrun-bootstrap", address, "--durations=0", "-vv")
    assert "2 errors" in done.stdout, done.stdout
    assert f"--riverrun-bootstrap {address}: {saying}" in done.stdout
    assert "Traceback" not in done.stdout
    waits = [float(wait) for wait in re.findall(r"([\d.]+)s setup", done.stdout)]
    assert sum(waits) < OPERATION_SECONDS_MAX / 2, "the second test did not wait again"


def test_settings_and_the_number_of_nodes_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(SETTINGS)
    (tmp_path / "test_it.py").write_text(USES_SETTINGS)
    assert_passed(run_pytest(tmp_path, "--riverrun-nodes", "2"), 1)
