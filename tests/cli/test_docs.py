"""The commands in docs/cli.md run in order and print what the page shows."""

import subprocess
import sys
from pathlib import Path

from tests.cli.commands import Cli
from tests.pages import MARK, examples


def test_the_tour_shows_real_output(cli: Cli, tmp_path: Path) -> None:
    shown = examples("cli.md")
    assert len(shown) > 15
    script = f"\necho '{MARK}'\n".join(command for command, _ in shown)
    path = f"{Path(sys.executable).parent}:{cli.env['PATH']}"
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        env={**cli.env, "PATH": path, "LC_ALL": "C"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    outputs = done.stdout.split(f"{MARK}\n")
    for (command, output), printed in zip(shown, outputs, strict=False):
        assert printed == output, (command, done.stderr)
    assert done.returncode == 0, done.stderr
    assert len(outputs) == len(shown)
