"""The status file, the stop request and the run lock of a pipeline.

All three are files in the pipeline's state folder, so that any process that can read the folder
can show the status and stop the pipeline.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

STATUS = "status.json"
STOP = "stop"
LOCK = "lock"
STARTING = "starting"
SILENT_SECONDS_MAX = 120.0
"""A pipeline on another machine whose status is older than this is dead. It writes several times a
second, but starting a query may block it."""


@dataclass(slots=True, kw_only=True)
class QueryStatus:
    """The query of one sink."""

    sink: str
    state: str = STARTING
    """starting, running, waiting (for a restart or for input), ending, ended, failed, or dead."""
    rows_per_second: float = 0.0
    """Of the last completed batch."""
    rows: int = 0
    """Rows written by this run."""
    total: int | None = None
    """Rows written since the table, or the checkpoint of a topic, was created; None if unknown."""
    lag: int | None = None
    """Records in the topics that are not in the sink yet; None if unknown."""
    lags: dict[str, int] = field(default_factory=dict)
    positions: dict[str, int] | None = None
    """The next offset that the sink needs, by partition; None if unknown."""
    batch_id: int | None = None
    """The last completed batch."""
    batch_ms: int | None = None
    current_batch: int | None = None
    """The batch under way."""
    current_records: int | None = None
    current_since_ms: int | None = None
    dead_letters: int = 0
    open_transactions: int = 0
    """Transactions that a run has left open. Readers of the topic wait for their end."""
    restarts: int = 0
    reason: str | None = None
    """The last failure."""


@dataclass(slots=True, kw_only=True)
class PipelineStatus:
    name: str
    pid: int
    host: str
    master: str
    ui: str | None
    since_ms: int
    now_ms: int
    log: str | None = None
    """File with the output of Spark."""
    bootstrap: str | None = None
    """The cluster that the run used."""
    has_ended: bool = False
    is_paused: bool = False
    """The console has stopped the queries. The process waits for it to start them again."""
    process_started: str | None = None
    """Start time of the process in clock ticks since boot. It detects a reused process id."""
    queries: list[QueryStatus] = field(default_factory=list)


def starting_status(
    name: str, master: str, sinks: Sequence[str], *, log: str, bootstrap: str
) -> PipelineStatus:
    """The status before Spark has started, so that the pipeline can already be stopped."""
    queries = [QueryStatus(sink=sink) for sink in sinks]
    status = status_of_this_process(name, master, queries)
    return replace(status, log=log, bootstrap=bootstrap)


def status_of_this_process(
    name: str,
    master: str,
    queries: list[QueryStatus],
    *,
    ui: str | None = None,
    since_ms: int | None = None,
) -> PipelineStatus:
    """``since_ms`` defaults to now."""
    now_ms = int(time.time() * 1000)
    return PipelineStatus(
        name=name,
        pid=os.getpid(),
        host=os.uname().nodename,
        master=master,
        ui=ui,
        since_ms=now_ms if since_ms is None else since_ms,
        now_ms=now_ms,
        process_started=process_started(os.getpid()),
        queries=queries,
    )


def write_status(folder: Path, status: PipelineStatus) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{STATUS}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(status)))
    temporary.replace(folder / STATUS)


def read_status(folder: Path) -> PipelineStatus | None:
    """Ignores fields that this version does not have."""
    try:
        fields_ = json.loads((folder / STATUS).read_text())
    except FileNotFoundError:
        return None
    queries = [QueryStatus(**_known(QueryStatus, row)) for row in fields_.pop("queries")]
    return PipelineStatus(**_known(PipelineStatus, fields_), queries=queries)


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    names = [one.name for one in fields(kind)]
    return {name: value for name, value in values.items() if name in names}


def process_started(pid: int) -> str | None:
    """None without /proc, and for a process that does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if stat[0] == "Z" else stat[19]


def is_alive(status: PipelineStatus, now_s: float | None = None) -> bool:
    """Whether the pipeline runs. On another machine, this is estimated from the age of
    its status file."""
    if status.has_ended:
        return False
    if status.host != os.uname().nodename:
        now_s = time.time() if now_s is None else now_s
        return now_s - status.now_ms / 1000 < SILENT_SECONDS_MAX
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if not Path("/proc/self/stat").exists():
        return True
    started = process_started(status.pid)
    return started is not None and status.process_started in (None, started)


def state_of_pipeline(status: PipelineStatus, *, is_running: bool) -> str:
    """starting, running, ending, stopped (by the console), ended, failed, or dead (the process left
    no last status)."""
    states = [query.state for query in status.queries]
    if is_running:
        if "ending" in states:
            return "ending"
        if status.is_paused:
            return "stopped"
        return STARTING if all(state == STARTING for state in states) else "running"
    if not status.has_ended:
        return "dead"
    return "failed" if "failed" in states else "ended"


def without_process(status: PipelineStatus) -> PipelineStatus:
    """The status of a pipeline that does not run: nothing is under way, and the lag is unknown.

    Queries of a dead process have the state of their last status, which would look alive.
    """
    queries = [
        replace(
            query,
            state=query.state if query.state in ("ended", "failed") else "dead",
            lag=None,
            lags={},
            rows_per_second=0.0,
            current_batch=None,
            current_records=None,
            current_since_ms=None,
        )
        for query in status.queries
    ]
    return replace(status, queries=queries)


class AlreadyRunning(Exception):
    """Another process holds the run lock. The text names it if its status is known."""


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Allow only one run of a pipeline at a time. The lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = read_status(folder)
            is_known = found is not None and is_alive(found)
            owner = f", as process {found.pid} on {found.host}" if found and is_known else ""
            raise AlreadyRunning(f"it is already running{owner}") from error
        yield


def request_stop(folder: Path) -> None:
    (folder / STOP).touch()


def is_stop_requested(folder: Path) -> bool:
    return (folder / STOP).exists()


def clear_stop(folder: Path) -> None:
    (folder / STOP).unlink(missing_ok=True)
