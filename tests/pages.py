"""The commands in a page of docs/, for tests that run them."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
MARK = "--- next command ---"
"""Printed between two commands, to separate their outputs."""


def examples(page: str) -> list[tuple[str, str]]:
    """The commands of a page with their output."""
    found: list[tuple[str, str]] = []
    text = DOCS.joinpath(page).read_text()
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found
