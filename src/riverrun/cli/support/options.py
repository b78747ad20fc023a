"""Shared by commands: options, exit codes, and errors."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

BOOTSTRAP_DEFAULT = "127.0.0.1:9092"
BOOTSTRAP_VARIABLE = "RIVERRUN_BOOTSTRAP"

FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,
        help="Address of a node of the cluster, or several separated by commas.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Exit with a message on standard error."""
    print(f"riverrun: {message}", file=sys.stderr)
    raise typer.Exit(code)


def parse_settings(texts: list[str], option: str = "--set") -> dict[str, str]:
    """Parse the ``NAME=VALUE`` texts of a repeated option."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            example = "num.partitions=3" if option == "--set" else "retention.ms=60000"
            fail(f"{option} {text}: expected NAME=VALUE, for example {option} {example}", USAGE)
        pairs[name.strip()] = value.strip()
    return pairs


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something is lost. Without a terminal --yes is required."""
    if is_agreed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail(f"{question} Use --yes to do it without a question.", USAGE)
    if not typer.confirm(question, err=True):
        fail("nothing was changed")
