"""``riverrun help`` and ``riverrun version``, for people who do not try ``--help`` first."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("version")(version)
    app.command("help")(show_help)


def version() -> None:
    """Print the version."""
    from riverrun import __version__

    print(f"riverrun {__version__}")


def show_help(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", show_default=False, help="A command, such as topics create."
        ),
    ] = None,
) -> None:
    """Explain a command; without one, list all.

    \b
    riverrun help topics create
    """
    from riverrun.cli.main import build

    words = [*(command or []), "--help"]
    build(words)(args=words, prog_name="riverrun")
