"""Commands that a page of docs/ shows, so that tests can run what readers type."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
MARK = "--- next command ---"
"""Printed between two commands, so that their outputs can be told apart."""


def examples(page: str) -> list[tuple[str, str]]:
    """Commands with the output that the page shows."""
    found: list[tuple[str, str]] = []
    text = DOCS.joinpath(page).read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found
