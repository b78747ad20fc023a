"""Nodes as child processes: start, output, end.

Each node holds one end of a pipe and stops when this program ends for any reason. The logs of
several nodes, or of a detached cluster, come through pipes, and ``node_output`` prints or stores
them line by line. These pipes never block a node: a line that does not fit is dropped.

``riverrun up`` and ``riverrun start --processes`` decide what happens when a node ends.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from riverrun.cli.supervision.log_reasons import reason_in
from riverrun.cli.supervision.node_output import NodeOutput

EXIT_SECONDS_MAX: Final = 30.0
"""How long a node may take to end after it closed its pipe."""
READ_BYTES: Final = 65_536
READY: Final = b"ready\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLaunch:
    """How the nodes are started."""

    module: str = "riverrun.server"
    """It takes the arguments of ``riverrun.server``. Test clusters run nodes with faults."""
    parent_fd: int | None = None
    """A pipe that our parent process holds; its end stops the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStart:
    """The file and the environment that a node is started with."""

    id: int
    config: Path
    environment: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes]
    log: int | None
    is_ready: bool = False
    is_starting: bool = True
    """It has neither reported that it is ready nor ended."""
    reason: str | None = None
    """The last error in its log while it starts."""


class Processes:
    """All nodes that this program runs, by id. Single-threaded: ``wait`` does all the work."""

    def __init__(self, output: NodeOutput, launch: NodeLaunch) -> None:
        self._output = output
        self.is_stopping = False
        self.is_interrupted = False
        """Interrupted by Ctrl-C."""
        self._module = launch.module
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, bytes] = {}
        self._children: dict[int, _Child] = {}
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self.watch(wake_read, lambda: os.read(wake_read, 512))
        self._parent_read, self._parent_write = os.pipe()
        self._parent_fd = parent_fd = launch.parent_fd
        if parent_fd is not None:
            self.watch(parent_fd, lambda: self._check_parent(parent_fd))

    def _request_stop(self, number: int, _frame: object) -> None:
        self.is_stopping = True
        self.is_interrupted |= number == signal.SIGINT

    def _check_parent(self, descriptor: int) -> None:
        """Stop at the end of the pipe: then no process holds its other end."""
        try:
            is_held = bool(os.read(descriptor, 16))
        except BlockingIOError:
            return
        if not is_held:
            self.release_parent()
            self.is_stopping = True

    def release_parent(self) -> None:
        """Continue when the parent process ends."""
        if self._parent_fd is not None:
            self._selector.unregister(self._parent_fd)
            os.close(self._parent_fd)
            self._parent_fd = None

    def start(self, node: NodeStart) -> None:
        """Start a node that does not run, for the first time or again."""
        assert not self.is_running(node.id), f"node {node.id} runs already"
        self.read_log(node.id)
        ready_read, ready_write = os.pipe()
        log_read, log_write = self._log_pipe()
        command = [
            sys.executable,
            "-m",
            self._module,
            str(node.config),
            str(ready_write),
            str(self._parent_read),
            *(["prefixed"] if self._output.is_prefixed else []),
        ]
        # A separate session: Ctrl-C reaches only this program, which then stops the nodes.
        process = subprocess.Popen(
            command,
            pass_fds=(ready_write, self._parent_read),
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            start_new_session=True,
            env=dict(node.environment),
        )
        os.close(ready_write)
        child = self._children[node.id] = _Child(process=process, log=log_read)
        self.watch(ready_read, lambda: self._read_ready(child, ready_read))
        if log_read is not None and log_write is not None:
            os.close(log_write)
            self.watch(log_read, lambda: self._show(node.id, child, log_read))

    def _log_pipe(self) -> tuple[int | None, int | None]:
        """None for a single node in the foreground, which writes to our own output."""
        if not self._output.has_pipes:
            return None, None
        read, write = os.pipe()
        os.set_blocking(write, False)  # a node drops a line rather than wait for a terminal
        return read, write

    def _read_ready(self, child: _Child, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        child.is_ready = os.read(descriptor, 16) == READY
        child.is_starting = False
        os.close(descriptor)

    def is_running(self, number: int) -> bool:
        child = self._children.get(number)
        return child is not None and child.process.poll() is None

    def is_starting(self, number: int) -> bool:
        return self._children[number].is_starting

    def is_ready(self, number: int) -> bool:
        """Whether the node has reported that it is ready, even if it has ended since."""
        return self._children[number].is_ready

    def process_id(self, number: int) -> int:
        return self._children[number].process.pid

    def reason(self, number: int) -> str | None:
        """Why a node could not start, in its own words if it logged any."""
        self.read_log(number)
        return self._children[number].reason

    def exit_code(self, number: int) -> int:
        """The exit code of a node that has closed its pipe; 2 if it refused its settings."""
        try:
            code = self._children[number].process.wait(EXIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return 1
        return code if code > 0 else 1

    def described(self, number: int) -> str:
        """The state of a node that is not ready, in words."""
        code = self._children[number].process.poll()
        if code is None:
            return "is not ready yet"
        return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"

    def has_refused(self, number: int) -> bool:
        """Whether the node ended with an error before it was ready; not by a signal."""
        child = self._children[number]
        return not child.is_ready and (child.process.poll() or 0) > 0

    def kill(self, number: int) -> None:
        self._children[number].process.kill()

    def forward(self, number: signal.Signals) -> None:
        """Send a signal to all nodes that are ready. It would end one that still starts."""
        for child in list(self._children.values()):
            if child.is_ready:
                child.process.send_signal(number)

    def read_log(self, number: int) -> None:
        """Show the log that the node has written so far."""
        child = self._children.get(number)
        while child is not None and child.log is not None:
            if not any(key.fd == child.log for key, _ in self._selector.select(0)):
                break
            self._show(number, child, child.log)

    def stop(
        self,
        numbers: Sequence[int],
        seconds_max: float,
        meanwhile: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Stop nodes and print their output meanwhile; kill them after a timeout.

        ``meanwhile`` is called at the time that it returned before, and after each event.
        """
        running = [self._children[one].process for one in numbers if self.is_running(one)]
        for process in running:
            process.terminate()
        end = time.monotonic() + seconds_max
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            moment = meanwhile()
            until = end if moment is None else min(end, moment)
            self.wait(max(0.0, until - time.monotonic()))
        for process in running:
            if process.poll() is None:
                limit = f"{seconds_max:.0f} s"
                self.say(f"process {process.pid} did not stop within {limit}; killing it")
                process.kill()
                process.wait()
        self._drain()

    def close(self) -> None:
        """Release the pipe to the nodes. All have ended."""
        os.close(self._parent_read)
        os.close(self._parent_write)

    def say(self, message: str) -> None:
        self._output.say(message)

    def wait(self, seconds: float | None) -> None:
        """Wait for output, a signal or the end of a node, and handle it."""
        for key, _ in self._selector.select(seconds):
            # A callback may have closed the descriptor of another one.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call back in ``wait`` when there is something to read."""
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _drain(self) -> None:
        """Print the last output before the end."""
        while any(key.fd in self._lines for key, _ in self._selector.select(0)):
            self.wait(0)

    def _show(self, number: int, child: _Child, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        whole = self._lines.pop(descriptor, b"") + data
        if not data:  # the node is gone
            self._selector.unregister(descriptor)
            os.close(descriptor)
            child.log = None
            whole += b"\n" if whole else b""
        else:
            whole, newline, rest = whole.rpartition(b"\n")
            self._lines[descriptor] = rest
            whole += newline
        if not child.is_ready:
            for line in whole.decode(errors="replace").splitlines():
                child.reason = reason_in(line) or child.reason
        self._output.show(number, whole)
