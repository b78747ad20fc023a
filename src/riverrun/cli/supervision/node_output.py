"""Where the logs of the nodes and the messages of their supervisor go: to the terminal, to one
stream of JSON, or, of a detached cluster, to files in the data directory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

COLOURS: Final = (36, 33, 35, 32, 34, 31)
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log file of this size becomes ``.1``, and replaces the one before."""
SHOWN_LINES_MAX: Final = 20


class NodeOutput(Protocol):
    has_pipes: bool
    """Whether the nodes write to pipes, and ``show`` gets their lines."""
    is_prefixed: bool
    """Whether ``show`` prints the name of the node, which then leaves it out."""

    def show(self, number: int, lines: bytes) -> None: ...

    def say(self, message: str) -> None: ...

    def report_failure(self, number: int, why: str | None) -> None:
        """The node could not start."""
        ...


class TerminalOutput:
    """Standard error. Lines of several nodes start with the node's name."""

    def __init__(self, numbers: Sequence[int], *, has_pipes: bool, is_prefixed: bool) -> None:
        self.has_pipes = has_pipes
        self.is_prefixed = is_prefixed
        self._colours = {number: COLOURS[at % len(COLOURS)] for at, number in enumerate(numbers)}
        self._width = max(len(name_of(number)) for number in numbers)
        self._is_coloured = sys.stderr.isatty()

    def show(self, number: int, lines: bytes) -> None:
        prefix = self._prefix(number)
        # A closed terminal does not stop the nodes.
        with contextlib.suppress(OSError):
            sys.stderr.buffer.writelines(prefix + line for line in lines.splitlines(keepends=True))
            sys.stderr.buffer.flush()

    def say(self, message: str) -> None:
        with contextlib.suppress(OSError):
            print(f"riverrun: {message}", file=sys.stderr, flush=True)

    def report_failure(self, number: int, why: str | None) -> None:
        self.say(f"{_could_not_start(number, why)}; see its log above")

    def _prefix(self, number: int) -> bytes:
        name = f"{name_of(number):{self._width}} | "
        if self._is_coloured:
            name = f"\x1b[{self._colours[number]}m{name}\x1b[0m"
        return name.encode()


class JsonOutput:
    """Standard error, where each line is a JSON object with the id of its node. Other lines of a
    node, such as a traceback of the interpreter, become the event of such an object."""

    has_pipes = True
    is_prefixed = False

    def show(self, number: int, lines: bytes) -> None:
        with contextlib.suppress(OSError):
            for line in lines.splitlines():
                sys.stderr.buffer.write(line if _is_object(line) else _wrapped(number, line))
                sys.stderr.buffer.write(b"\n")
            sys.stderr.buffer.flush()

    def say(self, message: str) -> None:
        self._say(message, "info")

    def report_failure(self, number: int, why: str | None) -> None:
        self._say(_could_not_start(number, why), "error")

    def _say(self, message: str, level: str) -> None:
        with contextlib.suppress(OSError):
            told = {"event": message, "level": level, "timestamp": _now()}
            print(json.dumps(told), file=sys.stderr, flush=True)


def name_of(number: int) -> str:
    return f"node-{number}"


def _is_object(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}")


def _wrapped(number: int, line: bytes) -> bytes:
    told = {
        "node": number,
        "event": line.decode(errors="replace"),
        "level": "error",
        "timestamp": _now(),
    }
    return json.dumps(told).encode()


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class FileOutput:
    """Files beside the data: one per node, and one for our own messages.

    Until ``detach``, messages go to standard error too, where the user waits for them.
    """

    has_pipes = True
    is_prefixed = False

    def __init__(self, path: Path, paths: Mapping[int, Path], *, is_ephemeral: bool) -> None:
        """``paths`` of the nodes' logs by id."""
        self._is_ephemeral = is_ephemeral
        self._paths = paths
        self._logs = {number: RotatingFile(one) for number, one in paths.items()}
        self._log = RotatingFile(path)
        self._is_detached = False

    def show(self, number: int, lines: bytes) -> None:
        self._logs[number].write(lines)

    def say(self, message: str) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._log.write(f"{moment} {message}\n".encode())
        if not self._is_detached:
            print(f"riverrun: {message}", file=sys.stderr, flush=True)

    def report_failure(self, number: int, why: str | None) -> None:
        """Temporary data is removed together with the log, so the end of the log is printed."""
        path = self._paths[number]
        if not self._is_ephemeral:
            self.say(f"{_could_not_start(number, why)}; see its log, {path}")
            return
        self.say(f"{_could_not_start(number, why)}; the end of its log:")
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()[-SHOWN_LINES_MAX:]
            print("\n".join(lines), file=sys.stderr, flush=True)

    def detach(self) -> None:
        """Release the terminal. Standard output and error become the log, for tracebacks."""
        self._is_detached = True
        sys.stdout.flush()
        sys.stderr.flush()
        descriptor = self._log.descriptor()
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        os.close(descriptor)


def _could_not_start(number: int, why: str | None) -> str:
    return f"node {number} could not start" + (f": {why}" if why else "")


class RotatingFile:
    """Appends to a file of limited size. A full disk loses lines and does not stop the nodes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            descriptor = self.descriptor()
            try:
                os.write(descriptor, data)
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size > LOG_BYTES_MAX:
                self._path.replace(self._path.with_name(self._path.name + ".1"))

    def descriptor(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
