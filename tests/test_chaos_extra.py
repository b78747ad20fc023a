"""``riverrun simulate`` and ``riverrun chaos`` need only ``pip install 'riverrun[chaos]'``."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.installed import Installed

ROOT = Path(__file__).parent.parent


@pytest.mark.peer
def test_simulate_runs_from_a_wheel(installed: Installed) -> None:
    output = installed.riverrun("simulate", "--nodes", "3", "--seeds", "1..2")
    assert "2/2 seeds" in output


@pytest.mark.peer
def test_chaos_runs_from_a_wheel(installed: Installed) -> None:
    output = installed.riverrun("chaos", "run", "leader-killed")
    assert "1 run in" in output and "1 held" in output


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
