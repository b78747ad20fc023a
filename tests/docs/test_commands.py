"""Every command line in the documentation names a command and options that exist."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from riverrun.cli.main import build
from tests.docs.command_lines import CommandLine, command_lines, mistake

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "src" / "riverrun" / "console"
CODE = re.compile(r"<code>(riverrun [^<]+)</code>")
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


@pytest.fixture(scope="module")
def root() -> Any:
    return get_command(build([]))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist(path: Path, root: Any) -> None:
    found = [(line, mistake(root, line)) for line in command_lines(path.read_text())]
    wrong = [f"{line.text!r}: {problem}" for line, problem in found if problem]
    assert not wrong, "\n".join(wrong)


def test_pages_have_commands() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    assert sum(1 for _ in command_lines(text)) > 60


def test_commands_that_the_console_names_exist(root: Any) -> None:
    """Pages name them in <code>, and sentences of the server in backticks."""
    files = [path for path in CONSOLE.rglob("*") if path.suffix in {".js", ".html", ".py"}]
    named = [f"`{command}`" for path in files for command in CODE.findall(path.read_text())]
    spoken = [path.read_text() for path in files if path.suffix == ".py"]
    lines = [line for text in (*named, *spoken) for line in command_lines(text)]
    assert len(named) >= 5
    wrong = {line.text: found for line in lines if (found := mistake(root, line))}
    assert not wrong


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("`riverrun topcs list`", "there is no command topcs"),
        ("`riverrun topics list --fast`", "there is no option --fast"),
        ("`riverrun quotas list\\|sett --user U`", "there is no command sett"),
        ("    riverrun topics list --fast       explained", "there is no option --fast"),
        ("```sh\necho a | X=1 riverrun produce t --wrong > x\n```", "there is no option --wrong"),
        ("1. Do\n\n    ```sh\n    riverrun quorum ad 2\n    ```\n", "there is no command ad"),
    ],
)
def test_mistakes_are_found(page: str, problem: str, root: Any) -> None:
    assert problem in [mistake(root, line) for line in command_lines(page)]


@pytest.mark.parametrize(
    "page",
    [
        "`riverrun COMMAND --help`",
        "`riverrun groups reset-offsets G --shift-by -5`",
        "```\nriverrun start --node-id 1 \\\n  --roles broker # --nothing\n```",
        "```python\nriverrun topics --fast\n```",
        "```sh\nriverrun consume t 2>/dev/null | sort --reverse\n```",
    ],
)
def test_correct_lines_are_accepted(page: str, root: Any) -> None:
    lines: list[CommandLine] = list(command_lines(page))
    assert [mistake(root, line) for line in lines] == [None] * len(lines)
