"""The commands of the tutorial run in order and print what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, MARK
from tests.processes import free_ports

BLOCK = re.compile(r"```(sh|console)\n(.*?)```", re.DOTALL)
SECONDS_MAX = 110
PORTS = 30

pytestmark = pytest.mark.slow


def _steps() -> list[tuple[str, str | None]]:
    """Commands with the output that they must have; None for any."""
    found: list[tuple[str, str | None]] = []
    for kind, block in BLOCK.findall((DOCS / "tutorial.md").read_text()):
        if "pip install" in block:  # Spark
            continue
        if kind == "sh":
            found.append((block.rstrip(), None))
            continue
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_the_tutorial_shows_real_output(tmp_path: Path) -> None:
    port = free_ports(PORTS)
    script = f"\necho '{MARK}'\n".join(command for command, _ in _steps())
    script = script.replace("riverrun up -d", f"riverrun up -d --port {port}")
    for number in range(3):
        script = script.replace(f":{9092 + 10 * number}", f":{port + 10 * number}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    finally:  # after a failure the nodes would run on
        for words in (["stop", "--kill", "--config", "data/node-2.toml"], ["down", "--kill"]):
            program = str(Path(sys.executable).with_name("riverrun"))
            subprocess.run([program, *words], cwd=tmp_path, capture_output=True, check=False)
    outputs = done.stdout.split(f"{MARK}\n")
    for (command, output), printed in zip(_steps(), outputs, strict=False):
        assert output is None or printed == output, (command, done.stderr)
    assert done.returncode == 0, done.stderr
    assert len(outputs) == len(_steps())
