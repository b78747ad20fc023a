"""What the console needs of the administration must not bring the command line along."""

import subprocess
import sys

CHECK = """
import pkgutil, sys, riverrun.admin
for module in pkgutil.walk_packages(riverrun.admin.__path__, "riverrun.admin."):
    __import__(module.name)
print(sorted({name.split(".")[0] for name in sys.modules} & {"typer", "rich", "click"}))
"""


def test_administration_imports_no_terminal_library() -> None:
    found = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=True
    ).stdout
    assert found.strip() == "[]"
