"""The examples in examples/testing and the code in docs/testing.md run unchanged."""

import re
import subprocess
import sys
from pathlib import Path

from tests.testing.plugin_runs import assert_passed, run_pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "testing"
NEEDS_SPARK = "test_spark.py"
"""tests/spark runs it."""


def test_examples_pass() -> None:
    files = [path.name for path in EXAMPLES.glob("test_*.py") if path.name != NEEDS_SPARK]
    assert_passed(run_pytest(EXAMPLES, *sorted(files)), len(files))


def test_the_django_example_passes() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "test"],
        cwd=EXAMPLES / "django_shop",
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 2 tests" in done.stderr


def test_code_in_the_documentation_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    blocks = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "test_" in block
    ]
    assert len(blocks) > 2
    for number, block in enumerate(blocks):
        (tmp_path / f"test_{number}.py").write_text(block)
    count = sum(len(re.findall(r"def test_", block)) for block in blocks)
    assert_passed(run_pytest(tmp_path), count)
