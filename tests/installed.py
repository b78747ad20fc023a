"""The package as users get it: built, and installed into a virtualenv of its own."""

import os
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.peers import run_installer

ROOT = Path(__file__).parent.parent
REMEDY = "pip must reach a package index"
BUILD_SECONDS_MAX = 100
RUN_SECONDS_MAX = 100


@dataclass(frozen=True)
class Distributions:
    wheel: Path
    sdist: Path


@dataclass(frozen=True)
class Installed:
    """A virtualenv with the wheel. Programs run outside the clone."""

    python: Path
    """Its interpreter, in the folder of its commands."""

    def riverrun(self, *arguments: str) -> str:
        """The output of the installed command, which must succeed."""
        done = self.run(str(self.python.with_name("riverrun")), *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(
        self,
        *command: str,
        folder: Path | None = None,
        with_libraries: bool = False,
        text: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command that must not find the clone. ``with_libraries`` lends it the third-party
        libraries of our own environment, such as Spark, whose installation takes minutes."""
        return subprocess.run(
            command,
            cwd=folder or self.python.parent,
            env=self.environment(with_libraries=with_libraries),
            text=True,
            input=text,
            capture_output=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )

    def environment(self, *, with_libraries: bool = False) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith("RIVERRUN_")
        }
        return {**kept, "PYTHONPATH": site.getsitepackages()[0]} if with_libraries else kept


def build_distributions(folder: Path, source: Path = ROOT) -> Distributions:
    """Build as `make dist` does."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=BUILD_SECONDS_MAX,
    )
    [wheel] = folder.glob("riverrun-*.whl")
    [sdist] = folder.glob("riverrun-*.tar.gz")
    return Distributions(wheel, sdist)


def install(wheel: Path, folder: Path) -> Installed:
    """Raises ``MissingPeer`` if pip cannot download the dependencies."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command = [*pip, "--python", str(python), "install", "-c", str(ROOT / "constraints.txt")]
    run_installer([*command, f"{wheel}[chaos]", "pytest"], folder=folder, remedy=REMEDY)
    return Installed(python)
