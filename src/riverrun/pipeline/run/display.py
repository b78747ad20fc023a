"""Shows the progress of a run: a live table on a terminal, else lines of text or JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as RichTable
from rich.text import Text

from riverrun.cli.support.output import Cell, Table, plain_row
from riverrun.pipeline.run.status import STARTING, PipelineStatus, QueryStatus

COLUMNS = ("sink", "state", "rows", "rows/s", "lag", "batch ms", "dead letters", "restarts")
LINES_EVERY_SECONDS = 5.0


def query_row(query: QueryStatus) -> list[Cell]:
    return [
        query.sink,
        query.state,
        query.rows,
        round(query.rows_per_second),
        query.lag,
        query.batch_ms,
        query.dead_letters,
        query.restarts,
    ]


def status_tables(status: PipelineStatus, *, is_running: bool) -> list[Table]:
    is_starting = all(query.state == STARTING for query in status.queries)
    verb = "starting" if is_starting else "running"
    state = f"{verb} as process {status.pid} on {status.host}" if is_running else "not running"
    title = f"{status.name}: {state}"
    if is_running and status.ui:
        title += f", Spark UI {status.ui}"
    rows = [query_row(query) for query in status.queries]
    tables = [Table(title=title, kind="sink", columns=COLUMNS, rows=list(rows))]
    behind: list[Sequence[Cell]] = [
        [query.sink, partition, lag]
        for query in status.queries
        for partition, lag in sorted(query.lags.items())
        if lag
    ]
    if behind:
        tables.append(Table(kind="lag", columns=("sink", "partition", "lag"), rows=behind))
    reasons = [[query.sink, query.reason] for query in status.queries if query.reason]
    if reasons:
        tables.append(Table(kind="reason", columns=("sink", "last failure"), rows=list(reasons)))
    return tables


class Display:
    """Updates a terminal at each call; prints lines on state changes and every 5 seconds."""

    def __init__(self, print_line: Callable[[str], None], *, as_json: bool) -> None:
        self._print_line = print_line
        self._as_json = as_json
        self._next = 0.0
        self._last: list[tuple[object, ...]] = []
        is_live = sys.stdout.isatty() and not as_json
        self._live = Live(refresh_per_second=4) if is_live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *caught: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: PipelineStatus, *, is_last: bool = False) -> None:
        if self._live is not None:
            self._show_live(self._live, status)
            return
        states: list[tuple[object, ...]] = [
            (query.sink, query.state, query.reason) for query in status.queries
        ]
        now = time.monotonic()
        if not is_last and states == self._last and now < self._next:
            return
        self._last, self._next = states, now + LINES_EVERY_SECONDS
        if self._as_json:
            self._print_line(json.dumps(asdict(status)))
            return
        for query in status.queries:
            self._print_line(plain_row([*query_row(query), query.reason]))

    def _show_live(self, live: Live, status: PipelineStatus) -> None:
        table = RichTable(box=None, pad_edge=False, header_style="bold cyan")
        for index, column in enumerate(COLUMNS):
            table.add_column(column, justify="left" if index < 2 else "right")
        for query in status.queries:
            cells = query_row(query)
            table.add_row(*(_cell(cell) for cell in cells))
        lines: list[RenderableType] = [table]
        lines += [
            Text(f"{query.sink}: {query.reason}", style="yellow")
            for query in status.queries
            if query.reason and query.state != "running"
        ]
        if status.ui:
            lines.append(
                Text(f"Spark UI {status.ui}   Ctrl-C stops after the current batch", style="dim")
            )
        live.update(Group(*lines))


def _cell(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
