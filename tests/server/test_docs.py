"""The generated documentation is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = ROOT / "tools" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docs_are_up_to_date(generator: ModuleType) -> None:
    for name, text in generator.generate().items():
        written = (ROOT / "docs" / name).read_text()
        assert text == written, f"docs/{name} is outdated: run python tools/generate_docs.py"


def test_labels_of_follower_metrics_are_documented(generator: ModuleType) -> None:
    for unit in ("bytes", "messages", "ms"):
        row = f"| `riverrun_follower_lag_{unit}` | gauge | follower, partition, topic |"
        assert row in generator.metrics()


def test_every_served_api_has_a_module_and_a_line_in_the_docs(generator: ModuleType) -> None:
    text = generator.compatibility()
    for api in generator.APIS.values():
        assert (generator.REQUESTS / f"{api.name}.py").exists(), f"no module serves {api.title}"
        assert f"| {api.title} | {int(api.key)} |" in text
