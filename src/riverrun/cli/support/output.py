"""Output of commands: aligned tables with colours on a terminal, tab-separated rows or JSON
elsewhere.

A terminal and a pipe get the same rows under the same headings. In a pipe nothing is aligned,
shortened or coloured, and numbers are plain, so that programs can read them. Lines that are too
long for a terminal overflow, so that no value is lost.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from riverrun.admin.tables import Bad, ByteCount, Cell, Good, Table, bytes_in_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

KIND = "KIND"
"""The heading above the kinds of rows."""
GAP = "  "
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the user wants to see of tables."""

    has_headings: bool = True
    is_wide: bool = False


DEFAULT_LAYOUT = Layout()


def is_terminal() -> bool:
    return sys.stdout.isatty()


@contextmanager
def until_closed() -> Iterator[None]:
    """Ends the command with success if the reader of its output has closed the pipe, as
    ``| head`` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def print_json(value: object) -> None:
    with until_closed():
        print(json.dumps(value, ensure_ascii=False))


def print_tables(tables: Sequence[Table], layout: Layout = DEFAULT_LAYOUT) -> None:
    with until_closed():
        if is_terminal():
            _print_pretty_tables(tables, layout)
            return
        for table in tables:
            for line in plain_lines(table, layout):
                print(line)


def plain_lines(table: Table, layout: Layout = DEFAULT_LAYOUT) -> Iterator[str]:
    """The rows separated by tabs, after a line of headings, also if there are no rows: a program
    can always skip the first line."""
    places = [
        at for at, name in enumerate(table.columns) if layout.is_wide or name not in table.wide
    ]
    names = [heading(table.columns[place]) for place in places]
    if layout.has_headings and any(names):
        yield plain_row(names if table.kind is None else [KIND, *names])
    for row in table.rows:
        cells = [row[place] for place in places]
        yield plain_row(cells if table.kind is None else [table.kind, *cells])


def heading(column: str) -> str:
    """``IN-SYNC``: without spaces, like the headings of kubectl."""
    return column.upper().replace(" ", "-")


def plain_row(row: Sequence[Cell]) -> str:
    """Cells separated by tabs; ``-`` for an absent value. No cell can break the row."""
    return "\t".join(_plain(cell) for cell in row)


def _plain(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return "-" if cell is None else str(cell).translate(_ESCAPES)


def _print_pretty_tables(tables: Sequence[Table], layout: Layout) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    shown = [table for table in tables if table.rows or table.title or table.empty]
    for place, table in enumerate(shown):
        if place:
            console.print()
        print_pretty(console, table, layout)


def print_pretty(console: Console, table: Table, layout: Layout = DEFAULT_LAYOUT) -> None:
    from rich.text import Text

    lines = []
    if table.title is not None:
        lines.append(Text(_visible(table.title), style="bold"))
    if table.rows:
        lines += _aligned(table, layout)
    elif table.empty is not None:
        lines.append(Text(table.empty, style="dim"))
    for line in lines:
        console.print(line, soft_wrap=True)


def _aligned(table: Table, layout: Layout) -> list[Text]:
    """The rows with equally wide columns; numbers are aligned on the right. The last column is not
    filled up, so that a long value in it does not add blank lines after the others."""
    from rich.cells import cell_len
    from rich.text import Text

    places = [
        place
        for place, name in enumerate(table.columns)
        if (layout.is_wide or name not in table.wide)
        and (name not in table.optional or any(row[place] is not None for row in table.rows))
    ]
    names = [heading(table.columns[place]) for place in places]
    lines = [[(_pretty(row[place]), _style(row[place])) for place in places] for row in table.rows]
    if layout.has_headings and any(names):
        lines.insert(0, [(name, "bold cyan") for name in names])
    widths = [max(cell_len(line[at][0]) for line in lines) for at in range(len(places))]
    is_number = [
        all(isinstance(row[place], int | float | None) for row in table.rows) for place in places
    ]
    aligned = []
    for line in lines:
        text = Text()
        for at, (word, style) in enumerate(line):
            filler = " " * (widths[at] - cell_len(word))
            is_last = at + 1 == len(line)
            text.append(filler if is_number[at] else "")
            text.append(word, style=style)
            text.append("" if is_last else GAP if is_number[at] else filler + GAP)
        aligned.append(text)
    return aligned


def _pretty(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, ByteCount):
        return bytes_in_words(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return _visible(cell)


def _visible(text: str) -> str:
    """The text without control characters, which could change what the terminal shows."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _style(cell: Cell) -> str:
    if cell is None:
        return "dim"
    if isinstance(cell, Good):
        return "green"
    return "red" if isinstance(cell, Bad) else ""
