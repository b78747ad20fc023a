"""The operations of all clients in order, which are the only input of the checks.

An operation is recorded when it starts (``INVOKE``) and when its result is known: ``OK``, ``FAIL``
(it did not happen) or ``INFO`` (the result is unknown). Histories are stored as JSON lines, so that
they can be kept and checked again.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path


class Action(StrEnum):
    SEND = "send"
    READ = "read"
    READ_BACK = "read back"
    """The log after all faults, with which all other operations are compared."""
    ASSIGN = "assign"
    """A reader gets a partition and starts at the group's committed offset."""
    COMMIT = "commit"
    COMMITTED = "committed"
    """A client fetched the committed offset of a group."""
    CREATE = "create"
    DELETE = "delete"
    SET = "set"
    """A number is stored in a setting of a topic."""
    FOUND = "found"
    """A topic and its number after all faults."""
    LEADER = "leader"
    """The quorum leader according to one node."""
    FAULT = "fault"
    NOTE = "note"


class OperationKind(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


Record = tuple[int, str]
"""Offset and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One line of the history; fields that an action does not use have their defaults."""

    time: float
    process: str
    action: Action
    kind: OperationKind = OperationKind.OK
    partition: int = -1
    value: str = ""
    offset: int = -1
    records: tuple[Record, ...] = ()
    high_watermark: int = -1
    group: str = ""
    node: int = -1
    epoch: int = -1
    text: str = ""

    @property
    def is_acknowledgement(self) -> bool:
        return self.action is Action.SEND and self.kind is OperationKind.OK

    def as_line(self) -> str:
        found = {}
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default or default is None:
                found[name] = round(value, 6) if name == "time" else value
        return json.dumps(found, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Operation:
        raw = json.loads(line)
        raw["action"] = Action(raw["action"])
        raw["kind"] = OperationKind(raw.get("kind", OperationKind.OK))
        raw["records"] = tuple((offset, value) for offset, value in raw.get("records", ()))
        return cls(**raw)


_DEFAULTS: dict[str, object] = {
    field.name: None if field.name in ("time", "process", "action") else field.default
    for field in fields(Operation)
}


class History:
    """Collects operations from many threads; times are relative to its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._operations: list[Operation] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        return time.monotonic() - self._began

    def add(
        self, process: str, action: Action, kind: OperationKind = OperationKind.OK, **more: object
    ) -> None:
        # Take the time under the lock, so that the list is ordered by time.
        with self._lock:
            operation = Operation(
                time=self.now(),
                process=process,
                action=action,
                kind=kind,
                **more,  # type: ignore[arg-type]
            )
            self._operations.append(operation)

    def operations(self) -> list[Operation]:
        with self._lock:
            return list(self._operations)

    def count(
        self, action: Action, kind: OperationKind = OperationKind.OK, *, since: float = 0.0
    ) -> int:
        found = 0
        for operation in reversed(self.operations()):
            if operation.time < since:
                break
            found += operation.action is action and operation.kind is kind
        return found


def write_history(path: Path, operations: Iterable[Operation]) -> None:
    with path.open("w") as file:
        for operation in operations:
            file.write(operation.as_line() + "\n")


def read_history(path: Path) -> Iterator[Operation]:
    with path.open() as file:
        for line in file:
            if line.strip():
                yield Operation.from_line(line)
