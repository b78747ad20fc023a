"""The reference of the command line, from the declarations of all commands."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

from typer.main import get_command

from riverrun.cli.main import build

COMMON_MIN = 10
"""Options of this many commands are described once."""

INTRODUCTION = """\
# Commands

Every command with its arguments and options. [The command line](../cli.md) is a tour with examples. `riverrun COMMAND --help`, or `-h`, prints the same text.

Exit codes: 0 success, 1 failure, 2 invalid flags, settings or data directory, 3 no cluster responds, 4 a named object does not exist.

## Common options

Commands name these options without repeating what they do.
"""

TYPE = re.compile(r"<([a-z]+)[^>]*>")
VALUES = {"int": "N", "float": "NUMBER", "path": "PATH", "str": "TEXT"}
"""How the types of values are shown."""

Option: TypeAlias = tuple[str, str]
"""An option with its metavar, and its description."""


def commands() -> str:
    """The page, without its first line."""
    found = list(_walk(get_command(build([])), ("riverrun",)))
    uses = Counter(option for _, command in found for option in _options(command))
    common = [option for option, count in uses.items() if count >= COMMON_MIN]
    lines = [INTRODUCTION, *_table("option", common)]
    for path, command in found:
        lines += _section(path, command, common)
    return "\n".join(lines) + "\n"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) > 1:
        yield path, command
    inner = getattr(command, "commands", {})
    for name in command.list_commands(None) if inner else ():
        if not inner[name].hidden:
            yield from _walk(inner[name], (*path, name))


def _section(path: tuple[str, ...], command: Any, common: list[Option]) -> list[str]:
    lines = ["", f"{'##' if len(path) == 2 else '###'} {' '.join(path)}", ""]
    if hasattr(command, "commands") and not command.invoke_without_command:
        return [*lines, *_help(command)]
    lines += ["```", " ".join([*path, *_usage(command)]), "```", "", *_help(command)]
    options = list(_options(command))
    if arguments := [argument for argument in _arguments(command) if argument[1]]:
        lines += ["", *_table("argument", arguments)]
    if own := [option for option in options if option not in common]:
        lines += ["", *_table("option", own)]
    if shared := [_long(name) for name, text in options if (name, text) in common]:
        lines += ["", f"[Common options](#common-options): {', '.join(shared)}."]
    return lines


def _help(command: Any) -> list[str]:
    """The help of a command. A paragraph that starts with a backspace keeps its lines."""
    lines: list[str] = []
    for paragraph in (command.help or "").strip().split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines += ["```sh", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [_plain(" ".join(paragraph.split())), ""]
    return lines[:-1]


def _usage(command: Any) -> list[str]:
    pieces: list[str] = command.collect_usage_pieces(_context(command))
    return [piece for piece in pieces if piece]


def _context(command: Any) -> Any:
    return command.context_class(command, info_name="riverrun")


def _arguments(command: Any) -> Iterator[Option]:
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield parameter.metavar.strip("[]"), parameter.help or ""


def _options(command: Any) -> Iterator[Option]:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            name, text = parameter.get_help_record(_context(command))
            yield (
                TYPE.sub(lambda found: VALUES.get(found[1], found[0]), name),
                " ".join(text.split()),
            )


def _long(option: str) -> str:
    """The first long name of an option."""
    return next(f"`{word.rstrip(',')}`" for word in option.split() if word.startswith("--"))


def _table(kind: str, rows: list[Option]) -> list[str]:
    shown = [f"| `{_cell(name)}` | {_cell(_plain(text))} |" for name, text in rows]
    return [f"| {kind} | |", "|---|---|", *shown]


def _plain(text: str) -> str:
    """Text whose characters outside of code have no meaning in Markdown."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in parts[::2]]
    return "`".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
