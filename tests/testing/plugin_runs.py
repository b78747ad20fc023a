"""Runs pytest in a process of its own, with the plugin as a user would have it."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path


def plugin_arguments() -> list[str]:
    """Load the plugin by name where the installed metadata does not declare it yet."""
    declared = importlib.metadata.entry_points(group="pytest11", name="riverrun")
    return [] if declared else ["-p", "riverrun.testing.pytest_plugin"]


def run_pytest(
    folder: Path, *arguments: str, seconds_max: float = 110
) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder. Options of our own pytest do not apply."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(folder), *plugin_arguments(), *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=seconds_max, check=False
    )


def assert_passed(done: subprocess.CompletedProcess[str], count: int) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed" in done.stdout, done.stdout
