"""The record of a running ``riverrun up`` in its data directory: a lock and a state file.

The supervisor holds ``up.lock`` for as long as it runs. ``up.json`` describes it for ``riverrun up
--status`` and ``riverrun down``. Both files are removed at the end; after a crash the lock is free,
so the state file is stale.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from riverrun.cli.support.options import FAILED, fail

LOCK_FILE = "up.lock"
STATE_FILE = "up.json"
LOG_FILE = "up.log"
EPHEMERAL_PREFIX = "riverrun-up-"
LOCK_TRIES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedNode:
    """A node as ``up`` started it."""

    id: int
    pid: int
    client: str
    http: str
    data: str
    config: str
    log: str | None = None

    @property
    def name(self) -> str:
        return f"node-{self.id}"

    def running_pid(self) -> int | None:
        """The process that runs with the data of this node; also one that was started later."""
        from riverrun.model.names import LOCK
        from riverrun.ports.files import lock_owner

        return lock_owner(os.path.join(self.data, LOCK))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpState:
    """What ``up`` has started. ``is_ready`` becomes true with its announcement."""

    pid: int
    data: str
    started_ms: int
    is_ready: bool = False
    is_detached: bool = False
    is_ephemeral: bool = False
    nodes: list[SupervisedNode] = field(default_factory=list)
    missing: dict[int, str] = field(default_factory=dict)
    """Why nodes did not start, by id."""
    security: dict[str, str] = field(default_factory=dict)
    """How clients of a secure cluster log in."""

    @property
    def bootstrap(self) -> str:
        return ",".join(node.client for node in self.nodes)

    @property
    def log(self) -> str | None:
        return str(Path(self.data) / LOG_FILE) if self.is_detached else None

    def write(self) -> None:
        """Replace the state file; readers see the old or the new one. A full disk does not stop
        the cluster."""
        path = Path(self.data) / STATE_FILE
        beside = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            # It may hold a password.
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(asdict(self), indent=1))
            beside.replace(path)

    @classmethod
    def read(cls, data: Path) -> Self | None:
        """None if there is no state file that this version can read."""
        try:
            fields = json.loads((data / STATE_FILE).read_text())
            nodes = [SupervisedNode(**row) for row in fields.pop("nodes")]
            missing = {int(number): why for number, why in fields.pop("missing").items()}
            return cls(**fields, nodes=nodes, missing=missing)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def supervisor_of(data: Path) -> int | None:
    """The process of the ``riverrun up`` that runs with this directory. Exits if that belongs to
    another user."""
    try:
        return _lock_owner(data)
    except PermissionError as error:
        fail(f"cannot read {error.filename}: {error.strerror}", FAILED)


def _lock_owner(data: Path) -> int | None:
    from riverrun.ports.files import lock_owner

    return lock_owner(str(data / LOCK_FILE))


@contextlib.contextmanager
def supervised(data: Path) -> Iterator[None]:
    """Hold the lock of the directory. Raises BlockingIOError if another process holds it."""
    from riverrun.ports.files import OsFiles

    path = data / LOCK_FILE
    for _ in range(LOCK_TRIES_MAX):
        lock = OsFiles().lock(str(path))
        # The last owner removes the file. If it did so after we opened it, our lock is worthless.
        if supervisor_of(data) == os.getpid():
            break
        lock.release()
    else:
        raise BlockingIOError(f"{path} was removed again and again")
    try:
        yield
    finally:
        remove_files(data)
        lock.release()


def remove_files(data: Path) -> None:
    for name in (STATE_FILE, LOCK_FILE):
        (data / name).unlink(missing_ok=True)


def ephemeral_clusters() -> list[Path]:
    """Data directories of running clusters that ``--ephemeral`` created."""
    found = sorted(Path(tempfile.gettempdir()).glob(f"{EPHEMERAL_PREFIX}*/{LOCK_FILE}"))
    running = []
    for path in found:
        with contextlib.suppress(PermissionError):  # of another user
            if _lock_owner(path.parent) is not None:
                running.append(path.parent)
    return running
