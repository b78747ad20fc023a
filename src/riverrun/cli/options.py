"""What several commands share: options, and how they end when something is wrong."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer


def fail(message: str, code: int = 1) -> NoReturn:
    """End the command with a sentence for the person, on standard error."""
    print(f"riverrun: {message}", file=sys.stderr)
    raise typer.Exit(code)


def parse_settings(texts: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts of a repeated ``--set``."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            fail(f"--set {text}: expected NAME=VALUE, for example --set num.partitions=3", 2)
        pairs[name.strip()] = value.strip()
    return pairs
