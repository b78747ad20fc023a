"""Shared by commands: options, exit codes, and errors."""

from __future__ import annotations

import sys
from datetime import datetime
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
NoHeaders = Annotated[
    bool, typer.Option("--no-headers", help="Print tables without their headings.")
]
Wide = Annotated[bool, typer.Option("--wide", help="Show further columns, such as long ids.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Exit with a message on standard error."""
    print(f"riverrun: {message}", file=sys.stderr)
    raise typer.Exit(code)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    print(f"riverrun: warning: {message}", file=sys.stderr)


def parse_settings(texts: list[str], option: str = "--set") -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts of a repeated option, or of arguments if it is empty."""
    pairs: dict[str, str] = {}
    label = f"{option} " if option else ""
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name.strip():
            example = "retention.ms=60000" if option == "--config" else "num.partitions=3"
            fail(f"{label}{text}: expected NAME=VALUE, for example {label}{example}", USAGE)
        pairs[name.strip()] = value.strip()
    return pairs


def parse_topics(texts: list[str], option: str = "--topic") -> dict[str, frozenset[int] | None]:
    """Parse ``TOPIC`` or ``TOPIC:0,1`` to partitions by topic, None for all."""
    wanted: dict[str, frozenset[int] | None] = {}
    for text in texts:
        topic, found, numbers = text.partition(":")
        indexes = numbers.split(",") if found else []
        if not topic or (found and not all(index.isdigit() for index in indexes)):
            fail(f"{option} {text}: expected TOPIC or TOPIC:0,1".lstrip(), USAGE)
        wanted[topic] = frozenset(map(int, indexes)) if found else None
    return wanted


def parse_datetime(text: str, option: str = "--to-datetime") -> int:
    """Milliseconds since 1970 of an ISO 8601 time; local time without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(
            f"{option} {text}: expected a time such as 2025-01-31T12:00 or 2025-01-31T12:00:00Z",
            USAGE,
        )
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        fail(f"{option} {text}: before 1970", USAGE)
    return milliseconds


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something is lost. Without a terminal --yes is required."""
    if is_agreed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail(f"{question} Use --yes to do it without a question.", USAGE)
    if not typer.confirm(question, err=True):
        fail("nothing was changed")
