"""KafkaJS, which uses old API versions, and @platformatic/kafka, which uses newer ones."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.peers import find_node_packages, need
from tests.processes import Server

SCRIPTS = Path(__file__).with_name("node")
pytestmark = pytest.mark.peer


def run_script(script: str, folder: Path, *arguments: str) -> Any:
    """Run a script in the folder of its packages, where Node.js looks for them."""
    packages = need(find_node_packages)
    shutil.copy(SCRIPTS / script, folder / script)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    done = subprocess.run(
        ["node", str(folder / script), *arguments],
        text=True,
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] or done.stdout[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_kafkajs(seen: Any) -> None:
    assert seen == {
        "errors": [],
        "created": True,
        "createdAgain": False,
        "partitions": 2,
        "offsets": [[0, "0"], [1, "0"]],
        "ends": [[0, "0", "50"], [1, "0", "50"]],
        "byTime": [[0, "25"], [1, "25"]],
        "equal": True,
        "count": 100,
        "resumed": ["later"],
        "committed": ["50", "51"],
        "described": "Empty",
        "retention": "604800000",
        "low": "10",
    }


def check_platformatic(seen: Any, topic: str) -> None:
    assert seen == {
        "created": [topic],
        "listed": True,
        "count": 60,
        "equal": True,
        "resumed": ["later"],
        "group": True,
        "state": "EMPTY",
    }


def test_kafkajs(server: Server, make_name: Callable[[], str], tmp_path: Path) -> None:
    check_kafkajs(run_script("kafkajs.mjs", tmp_path, server.bootstrap, make_name()))


def test_platformatic(server: Server, make_name: Callable[[], str], tmp_path: Path) -> None:
    topic = make_name()
    check_platformatic(run_script("platformatic.mjs", tmp_path, server.bootstrap, topic), topic)
