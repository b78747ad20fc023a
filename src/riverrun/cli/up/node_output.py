"""Where the logs of the nodes and the messages of ``riverrun up`` go: to the terminal, or, of a
detached cluster, to files in the data directory."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from riverrun.cli.up.files import NodeFiles
from riverrun.cli.up.state import LOG_FILE

COLOURS: Final = (36, 33, 35, 32, 34, 31)
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
"""A log file of this size becomes ``.1``, and replaces the one before."""
SHOWN_LINES_MAX: Final = 20


class NodeOutput(Protocol):
    has_pipes: bool
    """Whether the nodes write to pipes, and ``show`` gets their lines."""
    is_prefixed: bool
    """Whether ``show`` prints the name of the node, which then leaves it out."""

    def show(self, node: NodeFiles, lines: bytes) -> None: ...

    def say(self, message: str) -> None: ...

    def report_failure(self, node: NodeFiles, why: str | None) -> None:
        """The node could not start."""
        ...


class TerminalOutput:
    """Standard error. Lines of several nodes start with the node's name."""

    def __init__(self, cluster: Sequence[NodeFiles]) -> None:
        self.has_pipes = self.is_prefixed = len(cluster) > 1
        self._width = max(len(node.name) for node in cluster)
        self._is_coloured = sys.stderr.isatty()

    def show(self, node: NodeFiles, lines: bytes) -> None:
        prefix = self._prefix(node)
        # A closed terminal does not stop the nodes.
        with contextlib.suppress(OSError):
            sys.stderr.buffer.writelines(prefix + line for line in lines.splitlines(keepends=True))
            sys.stderr.buffer.flush()

    def say(self, message: str) -> None:
        print(f"riverrun: {message}", file=sys.stderr, flush=True)

    def report_failure(self, node: NodeFiles, why: str | None) -> None:
        self.say(f"{_could_not_start(node, why)}; see its log above")

    def _prefix(self, node: NodeFiles) -> bytes:
        name = f"{node.name:{self._width}} | "
        if self._is_coloured:
            name = f"\x1b[{COLOURS[(node.id - 1) % len(COLOURS)]}m{name}\x1b[0m"
        return name.encode()


class FileOutput:
    """Files beside the data: one per node, and ``up.log`` for our own messages.

    Until ``detach``, messages go to standard error too, where the user waits for them.
    """

    has_pipes = True
    is_prefixed = False

    def __init__(self, data: Path, cluster: Sequence[NodeFiles], *, is_ephemeral: bool) -> None:
        self._is_ephemeral = is_ephemeral
        self._logs: Mapping[int, RotatingFile] = {
            node.id: RotatingFile(node.log_file) for node in cluster
        }
        self._log = RotatingFile(data / LOG_FILE)
        self._is_detached = False

    def show(self, node: NodeFiles, lines: bytes) -> None:
        self._logs[node.id].write(lines)

    def say(self, message: str) -> None:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self._log.write(f"{moment} {message}\n".encode())
        if not self._is_detached:
            print(f"riverrun: {message}", file=sys.stderr, flush=True)

    def report_failure(self, node: NodeFiles, why: str | None) -> None:
        """Temporary data is removed together with the log, so the end of the log is printed."""
        if not self._is_ephemeral:
            self.say(f"{_could_not_start(node, why)}; see its log, {node.log_file}")
            return
        self.say(f"{_could_not_start(node, why)}; the end of its log:")
        with contextlib.suppress(OSError):
            lines = node.log_file.read_text(errors="replace").splitlines()[-SHOWN_LINES_MAX:]
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


def _could_not_start(node: NodeFiles, why: str | None) -> str:
    return f"node {node.id} could not start" + (f": {why}" if why else "")


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
