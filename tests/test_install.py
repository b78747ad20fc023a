"""What a user gets with pip: the wheel, the sdist, the commands, and `riverrun.testing`."""

import json
import re
import subprocess
import tarfile
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath

import pytest

from tests.installed import Distributions, Installed, build_distributions

ROOT = Path(__file__).parent.parent
READY_SECONDS_MAX = 60

pytestmark = pytest.mark.peer


def test_the_sdist_builds_the_same_wheel(distributions: Distributions, tmp_path: Path) -> None:
    with tarfile.open(distributions.sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [source] = (tmp_path / "source").iterdir()
    again = build_distributions(tmp_path, source)
    assert again.wheel.read_bytes() == distributions.wheel.read_bytes()
    assert again.sdist.name == distributions.sdist.name


def test_the_wheel_says_what_it_is(distributions: Distributions) -> None:
    [folder] = [at for at in ZipPath(distributions.wheel).iterdir() if "dist-info" in at.name]
    metadata = PathDistribution(folder).metadata
    assert metadata["Name"] == "riverrun"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"chaos", "spark"} <= set(metadata.get_all("Provides-Extra") or ())
    assert "Framework :: Pytest" in (metadata.get_all("Classifier") or ())


def test_the_command_line_works_from_the_wheel(installed: Installed) -> None:
    assert re.fullmatch(r"riverrun \d+\.\d+\.\d+\n", installed.riverrun("--version"))
    command = [str(installed.python.with_name("riverrun")), "up", "--nodes", "1", "--port", "0"]
    cluster = subprocess.Popen(
        [*command, "--ephemeral", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=installed.python.parent,
        env=installed.environment(),
    )
    assert cluster.stdout is not None
    with cluster, cluster.stdout:
        try:
            bootstrap = json.loads(cluster.stdout.readline())["bootstrap"]
            program = str(installed.python.with_name("riverrun"))
            produced = installed.run(program, "produce", "t", "-b", bootstrap, text="hello\n")
            assert produced.returncode == 0, produced.stderr
            read = ("consume", "t", "-b", bootstrap, "--from-beginning", "--until-end")
            assert installed.riverrun(*read) == "hello\n"
        finally:
            cluster.terminate()
            cluster.wait(READY_SECONDS_MAX)


def test_the_documentation_is_in_the_wheel(installed: Installed) -> None:
    assert installed.riverrun("docs", "settings") == (ROOT / "docs" / "settings.md").read_text()


def test_the_first_test_of_the_documentation_passes(installed: Installed, tmp_path: Path) -> None:
    page = installed.riverrun("docs", "testing")
    first = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert first is not None
    (tmp_path / "test_greeting.py").write_text(first[1])
    done = installed.run(str(installed.python), "-m", "pytest", "-q", folder=tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_pipelines_name_the_extra_and_work_with_it(installed: Installed, tmp_path: Path) -> None:
    example = tmp_path / "pipeline.yaml"
    example.write_text((ROOT / "examples" / "customers" / "pipeline.yaml").read_text())
    program = str(installed.python.with_name("riverrun"))
    without = installed.run(program, "pipeline", "run", str(example))
    assert without.returncode == 2
    assert "pip install 'riverrun[spark]'" in without.stderr
    checked = installed.run(
        program, "pipeline", "validate", str(example), with_libraries=True, folder=tmp_path
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "is valid" in checked.stdout
