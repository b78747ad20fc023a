"""The commands in docs/rest.md run in order and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import DOCS, MARK, examples
from tests.processes import Riverrun, serve

pytestmark = pytest.mark.slow

ADDRESS = "127.0.0.1:9094"
ANYTHING = re.escape("...")


@pytest.fixture
def node() -> Iterator[Riverrun]:
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder) / "n", peer="riverrun") as one:
        yield one


def test_the_examples_show_real_output(node: Riverrun, tmp_path: Path) -> None:
    shown = examples("rest.md")
    assert len(shown) >= 10
    script = f"\necho '{MARK}'\n".join(command for command, _ in shown)
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script.replace(ADDRESS, node.http)],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RIVERRUN_BOOTSTRAP": node.bootstrap,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The page shows the commands of a node with the usual address.
    printed = done.stdout.replace(f" --bootstrap {node.bootstrap}", "").split(f"{MARK}\n")
    assert len(printed) == len(shown)
    for (command, output), found in zip(shown, printed, strict=True):
        expected = re.escape(output.strip()).replace(ANYTHING, ".*?")
        assert re.fullmatch(expected, found.strip()), (command, found, output)


def test_the_page_lists_all_resources_of_v3() -> None:
    text = DOCS.joinpath("rest.md").read_text()
    from riverrun.console.api.v3 import ENDPOINTS

    for endpoint in ENDPOINTS:
        last = endpoint.full_path.removeprefix("/kafka").split("/")
        words = [part for part in last if part and not part.startswith("{") and part != "-"]
        assert words[-1].split(":")[0] in text, endpoint.full_path
