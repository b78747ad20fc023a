"""The program in the reference of the Python API runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from riverrun.testing import Cluster
from tests.pages import DOCS

SECONDS_MAX = 60

pytestmark = pytest.mark.slow


def test_the_example_of_the_client_writes_and_reads(tmp_path: Path) -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    block = re.search(r"```python\n(import asyncio\n.*?)```", page, re.DOTALL)
    assert block is not None
    with Cluster() as kafka:
        program = block[1].replace("127.0.0.1:9092", kafka.bootstrap)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "[b'hello']\n"), done.stderr
