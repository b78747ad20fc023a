"""``riverrun docs``, and messages that name pages which an installed package has."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from riverrun.cli.docs import page_names
from riverrun.cli.main import build

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s#]+\.md)(?:#[^)\s]*)?\)")
MESSAGE = re.compile(r"riverrun docs ([a-z]+)")


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(build(["docs", *words]), ["docs", *words])
    return result.exit_code, result.output


def test_all_pages_are_listed_with_their_titles() -> None:
    code, output = invoke("--json")
    listed = {row["page"]: row["title"] for row in json.loads(output)}
    assert code == 0
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    assert set(listed) == pages - {"README"}
    assert listed["reference/commands"] == "Commands"
    assert listed["cli"] == "The command line"
    assert "cli\tThe command line\n" in invoke()[1]


@pytest.mark.parametrize("name", ["testing", "testing.md"])
def test_a_page_is_printed(name: str) -> None:
    assert invoke(name) == (0, (ROOT / "docs" / "testing.md").read_text())


def test_a_page_of_the_reference_is_printed() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text()
    assert invoke("reference/python") == (0, page)


def test_links_of_pages_name_pages_that_are_printed() -> None:
    """A reader of the command has no other way to follow a link."""
    docs = ROOT / "docs"
    for name in page_names():
        page = docs / f"{name}.md"
        for target in LINK.findall(page.read_text()):
            if "://" not in target:
                linked = (page.parent / target).resolve().relative_to(docs)
                assert str(linked.with_suffix("")) in page_names(), f"{name} links to {target}"


def test_a_terminal_gets_a_pager() -> None:
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "riverrun", "docs", "testing"]
    with subprocess.Popen(
        command, stdin=inside, stdout=inside, env={**os.environ, "PAGER": "sed s/^/paged:/"}
    ):
        os.close(inside)
        assert os.read(terminal, 1000).startswith(b"paged:# Test with a real Kafka")
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while os.read(terminal, 65_536):
                pass
    os.close(terminal)


def test_an_unknown_page_is_not_found() -> None:
    code, output = invoke("setings")
    assert code == 4
    assert "there is no page setings; did you mean settings?" in output


def test_messages_name_existing_pages_and_no_files_of_a_clone() -> None:
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        if "wire/messages" in path.as_posix() or path.name == "docs.py":
            continue
        assert "in a clone" not in text, path
        assert "pip install -e" not in text, path
        assert "see docs/" not in text.lower(), path
        for page in MESSAGE.findall(text):
            assert page in page_names(), f"{path} names the page {page}"
