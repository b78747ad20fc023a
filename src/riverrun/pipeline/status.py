"""What a running pipeline tells of itself, in a file beside its checkpoints; and how it is asked
to stop, by a file too: so both work from any process that sees the folder.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATUS = "status.json"
STOP = "stop"


@dataclass(slots=True, kw_only=True)
class QueryStatus:
    """One sink."""

    sink: str
    state: str = "starting"
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
    queries: list[QueryStatus] = field(default_factory=list)


def write_status(folder: Path, status: PipelineStatus) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{STATUS}.{os.getpid()}"
    aside.write_text(json.dumps(asdict(status)))
    aside.replace(folder / STATUS)


def read_status(folder: Path) -> PipelineStatus | None:
    try:
        told = json.loads((folder / STATUS).read_text())
    except FileNotFoundError:
        return None
    queries = [QueryStatus(**row) for row in told.pop("queries")]
    return PipelineStatus(**told, queries=queries)


def is_alive(status: PipelineStatus) -> bool:
    """Whether the process is there, as far as this machine can tell."""
    if status.host != os.uname().nodename:
        return True
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{status.pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def ask_to_stop(folder: Path) -> None:
    (folder / STOP).touch()


def is_asked_to_stop(folder: Path) -> bool:
    return (folder / STOP).exists()


def clear_stop(folder: Path) -> None:
    (folder / STOP).unlink(missing_ok=True)
