"""Rows under named columns, and amounts in words. The command line prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None


class Good(str):
    """A text that is green on a terminal."""

    __slots__ = ()


class Bad(str):
    """A text that is red on a terminal."""

    __slots__ = ()


class ByteCount(int):
    """A size: ``1.5 KiB`` on a terminal, ``1536`` elsewhere."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class Table:
    """Rows under named columns. ``kind`` starts each plain row where a command prints several
    tables, so that ``grep ^kind`` finds its rows."""

    columns: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)
    title: str | None = None
    """Printed on a terminal only."""
    kind: str | None = None
    empty: str | None = None
    """Printed on a terminal when there are no rows."""
    optional: Sequence[str] = ()
    """Columns hidden on a terminal while no row has a value in them."""
    wide: Sequence[str] = ()
    """Columns shown only with --wide."""


def bytes_in_words(size: int) -> str:
    """For people: 1.2 GiB."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{int(size)} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """1 partition, 2 partitions."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
