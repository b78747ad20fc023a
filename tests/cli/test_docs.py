"""What docs/cli.md shows is true: its commands run in order and answer as printed there."""

import subprocess
import sys
from pathlib import Path

from tests.cli.commands import Cli
from tests.pages import MARK, examples


def test_the_tour_is_true(cli: Cli) -> None:
    shown = examples("cli.md")
    assert len(shown) > 15
    script = f"\necho '{MARK}'\n".join(command for command, _ in shown)
    path = f"{Path(sys.executable).parent}:{cli.env['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        env={**cli.env, "PATH": path, "LC_ALL": "C"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    outputs = done.stdout.split(f"{MARK}\n")
    for (command, output), printed in zip(shown, outputs, strict=False):
        assert printed == output, (command, done.stderr)
    assert done.returncode == 0, done.stderr
    assert len(outputs) == len(shown)
