"""Output of commands: tables with colours on a terminal, tab-separated rows or JSON elsewhere.

Programs must not break when the tables change for people. So without a terminal there are no
headings, no alignment and nothing is shortened.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | None

_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


class Good(str):
    """A text that is green on a terminal."""

    __slots__ = ()


class Bad(str):
    """A text that is red on a terminal."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows under named columns. ``kind`` starts each plain row where a command prints several
    tables, so that ``grep ^kind`` finds its rows."""

    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    title: str | None = None
    kind: str | None = None
    empty: str | None = None
    """Printed on a terminal when there are no rows."""
    is_last_folded: bool = False
    """If a row is too long for the terminal, only its last column is folded."""
    optional: Sequence[str] = ()
    """Columns hidden on a terminal while no row has a value in them."""


def is_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_tables(tables: Sequence[Table]) -> None:
    if not is_terminal():
        for table in tables:
            for row in table.rows:
                print(plain_row(row if table.kind is None else [table.kind, *row]))
        return
    from rich.console import Console

    console = Console(highlight=False)
    shown = [table for table in tables if table.rows or table.title or table.empty]
    for place, table in enumerate(shown):
        if place:
            console.print()
        print_pretty(console, table)


def plain_row(row: Sequence[Cell]) -> str:
    """Cells separated by tabs; ``-`` for an absent value. No cell can break the row."""
    return "\t".join(_plain(cell) for cell in row)


def _plain(cell: Cell) -> str:
    return "-" if cell is None else str(cell).translate(_ESCAPES)


def print_pretty(console: object, table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    assert isinstance(console, Console)
    if table.title is not None:
        console.print(Text(table.title, style="bold"))
    if not table.rows:
        if table.empty is not None:
            console.print(Text(table.empty, style="dim"))
        return
    places = [
        place
        for place, column in enumerate(table.columns)
        if column not in table.optional or any(row[place] is not None for row in table.rows)
    ]
    pretty = RichTable(
        box=None, pad_edge=False, header_style="bold cyan", show_edge=False,
        show_header=any(table.columns),
    )  # fmt: skip
    for place in places:
        is_number = all(isinstance(row[place], int | None) for row in table.rows)
        pretty.add_column(
            table.columns[place],
            justify="right" if is_number else "left",
            overflow="fold",
            # Only the last column may be folded: a broken address is useless.
            no_wrap=place + 1 < len(table.columns) and table.is_last_folded,
        )
    for row in table.rows:
        pretty.add_row(*(_pretty(row[place]) for place in places))
    console.print(pretty)


def _pretty(cell: Cell) -> str:
    from rich.markup import escape

    if cell is None:
        return "[dim]-[/dim]"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, Good):
        return f"[green]{escape(cell)}[/green]"
    return f"[red]{escape(cell)}[/red]" if isinstance(cell, Bad) else escape(cell)


def bytes_in_words(size: int) -> str:
    """For people: 1.2 GiB."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """1 partition, 2 partitions."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
