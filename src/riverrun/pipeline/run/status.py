"""What a running pipeline tells of itself, in a file beside its checkpoints; how it is asked to
stop, by a file too: so both work from any process that sees the folder; and the lock that keeps two
runs of one pipeline apart.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

STATUS = "status.json"
STOP = "stop"
LOCK = "lock"
STARTING = "starting"
SILENT_SECONDS_MAX = 120.0
"""A pipeline on another machine that tells nothing for so long has died: it tells several times a
second, but may be busy with starting a query."""


@dataclass(slots=True, kw_only=True)
class QueryStatus:
    """One sink."""

    sink: str
    state: str = STARTING
    """starting, running, waiting (to be started again), ended, or failed."""
    rows_per_second: float = 0.0
    rows: int = 0
    lag: int | None = None
    """Records that are in the topics and not yet in the sink."""
    lags: dict[str, int] = field(default_factory=dict)
    batch_id: int | None = None
    batch_ms: int | None = None
    dead_letters: int = 0
    restarts: int = 0
    reason: str | None = None
    """Why it failed the last time."""


@dataclass(slots=True, kw_only=True)
class PipelineStatus:
    name: str
    pid: int
    host: str
    master: str
    ui: str | None
    since_ms: int
    now_ms: int
    has_ended: bool = False
    process_started: str | None = None
    """When the process began, as its machine counts: ids of processes are used again."""
    queries: list[QueryStatus] = field(default_factory=list)


def starting(name: str, master: str, sinks: Sequence[str]) -> PipelineStatus:
    """What can be told before Spark is up, which takes a while: so that it can be stopped, too."""
    return of_this_process(name, master, [QueryStatus(sink=sink) for sink in sinks])


def of_this_process(
    name: str,
    master: str,
    queries: list[QueryStatus],
    *,
    ui: str | None = None,
    since_ms: int | None = None,
) -> PipelineStatus:
    """As it is now; since now if no other time is given."""
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
    aside = folder / f"{STATUS}.{os.getpid()}"
    aside.write_text(json.dumps(asdict(status)))
    aside.replace(folder / STATUS)


def read_status(folder: Path) -> PipelineStatus | None:
    """Fields that this version does not know are passed over."""
    try:
        told = json.loads((folder / STATUS).read_text())
    except FileNotFoundError:
        return None
    queries = [QueryStatus(**_known(QueryStatus, row)) for row in told.pop("queries")]
    return PipelineStatus(**_known(PipelineStatus, told), queries=queries)


def _known(kind: Any, told: dict[str, Any]) -> dict[str, Any]:
    names = [one.name for one in fields(kind)]
    return {name: value for name, value in told.items() if name in names}


def process_started(pid: int) -> str | None:
    """None where the system does not tell, and for a process that is not there."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if told[0] == "Z" else told[19]


def is_alive(status: PipelineStatus, now_s: float | None = None) -> bool:
    """Whether it runs, as far as this machine can tell: of another one by what it told last."""
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


class RunsAlready(Exception):
    """Somebody else has the lock; the text says who, if that is known."""


@contextlib.contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Two runs of one pipeline would fight over its checkpoints. The lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = read_status(folder)
            is_told = found is not None and is_alive(found)
            who = f", as process {found.pid} on {found.host}" if found and is_told else ""
            raise RunsAlready(f"it runs already{who}") from error
        yield


def ask_to_stop(folder: Path) -> None:
    (folder / STOP).touch()


def is_asked_to_stop(folder: Path) -> bool:
    return (folder / STOP).exists()


def clear_stop(folder: Path) -> None:
    (folder / STOP).unlink(missing_ok=True)
