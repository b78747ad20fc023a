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

from riverrun.admin.tables import Bad, Cell, Table, counted
from riverrun.cli.support.output import heading, plain_row
from riverrun.pipeline.run.status import STARTING, PipelineStatus, QueryStatus, state_of_pipeline

COLUMNS = (
    "sink", "state", "rows", "total", "rows/s", "lag", "batch ms", "dead letters", "restarts",
)  # fmt: skip
LINE_COLUMNS = (*COLUMNS, "batch records", "batch seconds", "last failure")
"""The columns of lines without a terminal."""
OPTIONAL = ("dead letters", "restarts")
"""Columns that a live table hides while all values are zero."""
LINES_EVERY_SECONDS = 5.0
FINAL = ("ended", "failed")


def query_row(query: QueryStatus) -> list[Cell]:
    return [
        query.sink,
        Bad(query.state) if query.state in ("failed", "dead") else query.state,
        query.rows,
        query.total,
        round(query.rows_per_second),
        query.lag,
        query.batch_ms,
        query.dead_letters,
        query.restarts,
    ]


def line_of(query: QueryStatus, now_ms: int) -> str:
    seconds = None if query.current_since_ms is None else _seconds(query.current_since_ms, now_ms)
    return plain_row([*query_row(query), query.current_records, seconds, query.reason])


def under_way(query: QueryStatus, now_ms: int) -> str | None:
    """Describe the current batch: ``batch 3 under way for 34 s, 48,006 records``."""
    if query.current_batch is None or query.current_since_ms is None:
        return None
    seconds = _seconds(query.current_since_ms, now_ms)
    text = f"batch {query.current_batch} under way for {seconds} s"
    if query.current_records is not None:
        text += f", {counted(query.current_records, 'record')}"
    return text


def title(status: PipelineStatus, state: str) -> str:
    """The title of the status on a terminal."""
    process = f"process {status.pid} on {status.host}"
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.now_ms / 1000))
    match state:
        case "dead":
            text = f"dead: {process} ended without a last status, after {at}"
        case "ended" | "failed":
            text = f"{state} at {at}"
        case _:
            text = f"{state} as {process}"
            text += f", Spark UI {status.ui}" if status.ui else ""
    log = f"\nSpark's log is {status.log}" if status.log else ""
    return f"{status.name}: {text}{log}"


def head_table(status: PipelineStatus, *, is_running: bool) -> Table:
    """The pipeline as a row, for output without a terminal."""
    state = state_of_pipeline(status, is_running=is_running)
    row: list[Cell] = [status.name, state, status.pid, status.host, status.ui, status.log]
    columns = ("name", "state", "process", "host", "Spark UI", "log")
    return Table(kind="pipeline", columns=columns, rows=[row])


def status_tables(status: PipelineStatus, *, is_running: bool) -> list[Table]:
    """The tables of ``riverrun pipeline status``."""
    rows: list[Sequence[Cell]] = [query_row(query) for query in status.queries]
    shown = title(status, state_of_pipeline(status, is_running=is_running))
    tables = [Table(title=shown, kind="sink", columns=COLUMNS, rows=rows)]
    current: list[Sequence[Cell]] = [
        [
            query.sink,
            query.current_batch,
            query.current_records,
            _seconds(query.current_since_ms, status.now_ms),
        ]
        for query in status.queries
        if query.current_since_ms is not None
    ]
    if current:
        columns = ("sink", "batch under way", "records", "seconds")
        tables.append(Table(kind="batch", columns=columns, rows=current))
    behind: list[Sequence[Cell]] = [
        [query.sink, partition, lag]
        for query in status.queries
        for partition, lag in sorted(query.lags.items())
        if lag
    ]
    if behind:
        tables.append(Table(kind="lag", columns=("sink", "partition", "lag"), rows=behind))
    left_open: list[Sequence[Cell]] = [
        [query.sink, query.open_transactions] for query in status.queries if query.open_transactions
    ]
    if left_open:
        names = ("sink", "open transactions")
        tables.append(Table(kind="transactions", columns=names, rows=left_open))
    reasons = [[query.sink, query.reason] for query in status.queries if query.reason]
    if reasons:
        tables.append(Table(kind="reason", columns=("sink", "last failure"), rows=list(reasons)))
    return tables


class Display:
    """Updates a terminal at each call; prints lines on state changes and every 5 seconds."""

    def __init__(
        self,
        print_line: Callable[[str], None],
        print_error: Callable[[str], None],
        *,
        as_json: bool,
        has_headings: bool = True,
    ) -> None:
        self._print_line = print_line
        self._print_error = print_error
        self._as_json = as_json
        self._has_headings = has_headings
        self._next = 0.0
        self._last: dict[str, tuple[str, str | None]] = {}
        """State and reason of each sink when its last line was printed."""
        self._announced: str | None = None
        self.is_closed = False
        """Whether the reader of the lines has closed its pipe, as ``| head`` does."""
        is_live = sys.stdout.isatty() and not as_json
        self._live = Live(refresh_per_second=4) if is_live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the terminal. The last table stays on it."""
        if self._live is not None:
            self._live.stop()

    def announce(self, text: str) -> None:
        """Tell the user what the program does now."""
        self._announced = text
        if self._live is None:
            self._print_error(f"riverrun: {text}")

    def show(self, status: PipelineStatus, *, is_last: bool = False) -> None:
        if self._live is not None:
            self._live.update(self._table(status, is_last=is_last))
            return
        states = {query.sink: (query.state, query.reason) for query in status.queries}
        now = time.monotonic()
        is_starting = all(query.state == STARTING for query in status.queries)
        if not is_last and states == self._last and (is_starting or now < self._next):
            return
        is_over = all(query.state in FINAL for query in status.queries)
        if is_over and not is_last:
            return  # the last status is complete, and follows at once
        shown, self._last, self._next = self._last, states, now + LINES_EVERY_SECONDS
        if self._as_json:
            self._print(json.dumps(asdict(status)))
            return
        if not shown and self._has_headings:
            self._print(plain_row([heading(column) for column in LINE_COLUMNS]))
        for query in status.queries:
            # The last line of a sink is printed once.
            if query.state not in FINAL or shown.get(query.sink) != states[query.sink]:
                self._print(line_of(query, status.now_ms))

    def _print(self, line: str) -> None:
        if self.is_closed:
            return
        try:
            self._print_line(line)
        except BrokenPipeError:
            self.is_closed = True

    def _table(self, status: PipelineStatus, *, is_last: bool) -> RenderableType:
        rows = [query_row(query) for query in status.queries]
        places = [
            place
            for place, column in enumerate(COLUMNS)
            if column not in OPTIONAL or any(row[place] for row in rows)
        ]
        table = RichTable(box=None, pad_edge=False, header_style="bold cyan")
        for place in places:
            table.add_column(COLUMNS[place], justify="left" if place < 2 else "right")
        for row in rows:
            table.add_row(*(_cell(row[place]) for place in places))
        lines: list[RenderableType] = [table]
        for query in status.queries:
            batch = under_way(query, status.now_ms)
            if batch is not None:
                lines.append(Text(f"{query.sink}: {batch}"))
            if query.reason and query.state != "running":
                lines.append(Text(f"{query.sink}: {query.reason}", style="yellow"))
        return Group(*lines, *self._footer(status, is_last=is_last))

    def _footer(self, status: PipelineStatus, *, is_last: bool) -> list[Text]:
        if is_last:
            return []
        is_starting = all(query.state == STARTING for query in status.queries)
        if is_starting and status.ui is None:
            first = f"starting Spark ({status.master})"
        else:
            first = "" if status.ui is None else f"Spark UI {status.ui}"
        log = "" if status.log is None else f"Spark's log is {status.log}"
        lines = [Text(text, style="dim") for text in (first, log) if text]
        if self._announced is not None:
            return [*lines, Text(self._announced, style="bold yellow")]
        when = "at once" if is_starting else "after the current batch"
        return [*lines, Text(f"Ctrl-C ends {when}", style="dim")]


def _seconds(since_ms: int | None, now_ms: int) -> int:
    return 0 if since_ms is None else max(0, (now_ms - since_ms) // 1000)


def _cell(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
