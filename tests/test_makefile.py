"""The rules of the Makefile that install: an interrupted installation can be repeated."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.processes import outside_make

ROOT = Path(__file__).parent.parent
SECONDS_MAX = 100

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed"),
]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), f"PYTHON={sys.executable}", *arguments],
        cwd=folder,
        env=outside_make(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_a_half_made_virtualenv_is_made_again_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    venv.create(tmp_path / ".venv", with_pip=False)  # it was interrupted before pip came
    commands = tmp_path / ".venv" / "bin"
    done = make(tmp_path, ".venv/.created")
    assert done.returncode == 0, done.stderr
    assert "Creating the virtualenv .venv" in done.stdout
    subprocess.run([commands / "python", "-m", "pip", "--version"], check=True)

    (tmp_path / ".venv" / "kept").touch()
    (tmp_path / ".venv" / ".created").unlink()
    assert make(tmp_path, ".venv/.created").stdout == ""
    assert (tmp_path / ".venv" / "kept").exists()


def test_a_failed_installation_says_how_to_continue(tmp_path: Path) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / ".created").touch()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("not a requirement\n")
    done = make(tmp_path, ".venv/.installed")
    assert done.returncode != 0
    assert "Installing riverrun into .venv" in done.stdout
    assert "Run the same command again" in done.stderr and "'make clean'" in done.stderr
    assert not (tmp_path / ".venv" / ".installed").exists()
