"""Typer applications whose help shows whole sentences and plain usage lines.

Typer writes a required argument as ``{TOPIC}``, an argument without a metavar in lower case, and
cuts the descriptions of commands to one line. Here an argument is ``TOPIC``, or ``TOPIC...`` if it
may be repeated, and long descriptions are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

DESCRIPTION_CHARACTERS_MAX = 1000
"""Longer than any description, so that none is cut."""


class PlainCommand(TyperCommand):
    """A command whose arguments are upper case and say whether they may be repeated."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                name = parameter.metavar or (parameter.name or "").upper()
                is_repeated = parameter.nargs == -1 and not name.endswith("...")
                parameter.metavar = f"{name}..." if is_repeated else name

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = super().collect_usage_pieces(ctx)
        return [piece.removeprefix("{").removesuffix("}") for piece in pieces]


class PlainGroup(TyperGroup):
    """A group that describes its commands in whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(DESCRIPTION_CHARACTERS_MAX))
            for name, command in commands
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class CommandApp(typer.Typer):
    """The application, or a group of its commands."""

    def __init__(self, *, help: str, cls: type[PlainGroup] = PlainGroup, **options: Any) -> None:
        super().__init__(cls=cls, help=help, no_args_is_help=True, rich_markup_mode=None, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        return super().command(name, **{"cls": PlainCommand, **options})
