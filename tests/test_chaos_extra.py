"""``riverrun simulate`` and ``riverrun chaos`` need only ``pip install 'riverrun[chaos]'``."""

import ast
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import need, run_installer

ROOT = Path(__file__).parent.parent
REMEDY = "pip must reach a package index"
RUN_SECONDS_MAX = 100


@pytest.fixture(scope="module")
def bin_folder() -> Iterator[Path]:
    """The commands of a virtualenv outside the clone, with the wheel and its extra installed."""
    with tempfile.TemporaryDirectory(prefix="riverrun-wheel-") as folder:
        yield need(lambda: install_wheel(Path(folder)))


def install_wheel(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    run_installer(build, folder=folder, remedy=REMEDY)
    [wheel] = folder.glob("riverrun-*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", str(python), "install", "-c", str(ROOT / "constraints.txt")]
    run_installer([*install, f"{wheel}[chaos]"], folder=folder, remedy=REMEDY)
    return python.parent


def run(bin_folder: Path, *arguments: str) -> str:
    """The output of the installed command, which must not find the clone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [bin_folder / "riverrun", *arguments],
        cwd=bin_folder,
        env=environment,
        text=True,
        capture_output=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.peer
def test_simulate_runs_from_a_wheel(bin_folder: Path) -> None:
    output = run(bin_folder, "simulate", "--nodes", "3", "--seeds", "1..2")
    assert "2/2 seeds" in output


@pytest.mark.peer
def test_chaos_runs_from_a_wheel(bin_folder: Path) -> None:
    output = run(bin_folder, "chaos", "run", "leader-killed")
    assert "1 runs in" in output and "1 holds" in output


def test_both_packages_import_only_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["chaos"]]
    names = [re.split(r"[^\w-]", requirement)[0] for requirement in requirements]
    declared = {name.replace("-", "_") for name in names}
    for package in ("simulation", "chaos"):
        for path in sorted((ROOT / "src" / "riverrun" / package).rglob("*.py")):
            unknown = imports(path) - declared - sys.stdlib_module_names - {"riverrun"}
            assert not unknown, f"{path.name} imports {sorted(unknown)}"


def imports(path: Path) -> set[str]:
    """The top-level packages that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            found.add(node.module.partition(".")[0])
    return found
