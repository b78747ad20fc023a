"""The processes of ``riverrun up``: start, output, stop.

Each node holds one end of a pipe and stops when this program ends for any reason. The logs of
several nodes, or of a detached cluster, come through pipes, and ``node_output`` prints or stores
them line by line. These pipes never block a node: a line that does not fit is dropped.
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
from typing import Final

from riverrun.cli.up.files import NodeFiles
from riverrun.cli.up.messages import ourselves, reason_in
from riverrun.cli.up.node_output import NodeOutput

READY_SECONDS_MAX: Final = 60.0
AFTER_FAILURE_SECONDS_MAX: Final = 10.0
"""How long the other nodes may take when one could not start; they may depend on it."""
STOP_SECONDS_MAX: Final = 30.0
READ_BYTES: Final = 65_536
REFUSED: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLaunch:
    """How the nodes are started."""

    module: str = "riverrun.server"
    """It takes the arguments of ``riverrun.server``. Test clusters run nodes with faults."""
    parent_fd: int | None = None
    """A pipe that our parent process holds; its end stops the nodes."""


class Processes:
    """All nodes of one cluster on this machine. Single-threaded: ``wait`` does all the work."""

    def __init__(
        self,
        cluster: Sequence[NodeFiles],
        environments: Mapping[int, Mapping[str, str]],
        output: NodeOutput,
        launch: NodeLaunch,
        *,
        is_ephemeral: bool = False,
    ) -> None:
        """``environments`` by node id."""
        self.cluster = cluster
        self._output = output
        self._is_ephemeral = is_ephemeral
        self.is_stopping = False
        self.is_interrupted = False
        """Interrupted by Ctrl-C."""
        self._environments = environments
        self._module = launch.module
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, bytes] = {}
        self._reasons: dict[int, str] = {}
        self._is_starting = True
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._watch(wake_read, lambda: os.read(wake_read, 512))
        self._parent_read, self._parent_write = os.pipe()
        self._parent_fd = parent_fd = launch.parent_fd
        if parent_fd is not None:
            self._watch(parent_fd, lambda: self._check_parent(parent_fd))

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

    def start(self) -> None:
        """Start all at once, because they need each other."""
        for node in self.cluster:
            self._spawn(node)
        os.close(self._parent_read)

    def _spawn(self, node: NodeFiles) -> None:
        ready_read, ready_write = os.pipe()
        log_read, log_write = self._log_pipe()
        command = [
            sys.executable,
            "-m",
            self._module,
            str(node.draft),
            str(ready_write),
            str(self._parent_read),
            *(["prefixed"] if self._output.is_prefixed else []),
        ]
        # A separate session: Ctrl-C reaches only this program, which then stops the nodes.
        node.process = subprocess.Popen(
            command,
            pass_fds=(ready_write, self._parent_read),
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            start_new_session=True,
            env=dict(self._environments[node.id]),
        )
        os.close(ready_write)
        node.ready = ready_read
        if log_read is not None and log_write is not None:
            os.close(log_write)
            node.log = log_read
            self._watch(log_read, lambda: self._show(node, log_read))

    def _log_pipe(self) -> tuple[int | None, int | None]:
        """None for a single node in the foreground, which writes to our own output."""
        if not self._output.has_pipes:
            return None, None
        read, write = os.pipe()
        os.set_blocking(write, False)  # a node drops a line rather than wait for a terminal
        return read, write

    def wait_ready(self) -> tuple[list[NodeFiles], int]:
        """The nodes that are ready, and the exit code of one that could not start, or 0."""
        end = time.monotonic() + READY_SECONDS_MAX
        waiting = {node.ready: node for node in self.cluster}
        serving: list[NodeFiles] = []
        code = 0

        def heard(descriptor: int) -> None:
            nonlocal code, end
            node = waiting.pop(descriptor)
            self._selector.unregister(descriptor)
            is_ready = os.read(descriptor, 16) == b"ready\n"
            os.close(descriptor)
            if is_ready:
                node.draft.replace(node.config)
                serving.append(node)
                return
            code = self._exit_code(node)
            self._read_log(node)
            self._output.report_failure(node, self._reasons.get(node.id))
            end = min(end, time.monotonic() + AFTER_FAILURE_SECONDS_MAX)

        for descriptor in waiting:
            self._watch(descriptor, lambda descriptor=descriptor: heard(descriptor))  # type: ignore[misc]
        while waiting and not self.is_stopping:
            left = end - time.monotonic()
            if left <= 0:
                names = ", ".join(str(node.id) for node in waiting.values())
                late = "node {} is" if len(waiting) == 1 else "nodes {} are"
                self.say(f"{late.format(names)} not ready in time")
                code = code or 1
                break
            self._wait(left)
        serving.sort(key=lambda node: node.id)
        return serving, code

    def missing(self, serving: Sequence[NodeFiles]) -> dict[int, str]:
        """Why each missing node is not ready, in its own words if it logged any."""
        found = {}
        for node in self.cluster:
            if node not in serving:
                self._read_log(node)
                found[node.id] = self._reasons.get(node.id) or _state_of(node)
        self._is_starting = False
        return found

    def _read_log(self, node: NodeFiles) -> None:
        """Show the log that the node has written so far."""
        while any(key.fd == node.log for key, _ in self._selector.select(0)):
            self._show(node, node.log)

    def _exit_code(self, node: NodeFiles) -> int:
        """The exit code of a node whose pipe is closed; 2 if ``start`` refused its settings."""
        assert node.process is not None, f"node {node.id} was never started"
        try:
            code = node.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return 1
        return code if code > 0 else 1

    def watch(self) -> int:
        """Run until stopped (0) or until no node is left (1). Reports nodes that end."""
        alive = [node for node in self.cluster if node.process and node.process.poll() is None]
        while not self.is_stopping:
            self._wait(None)
            for node in list(alive):
                assert node.process is not None, f"node {node.id} was never started"
                code = node.process.poll()
                if code is None or self.is_stopping:
                    continue
                alive.remove(node)
                self.say(
                    f"node {node.id} {_state_of(node)}; "
                    f"start it again with: {ourselves()} start --config {node.config}"
                )
            if not alive:
                kept = f"; the data stays in {self.cluster[0].data.parent}"
                self.say("all nodes have ended" + ("" if self._is_ephemeral else kept))
                return 1
        return 0

    def stop(self) -> None:
        """Stop all nodes and print their output meanwhile; kill them after a timeout."""
        running = [n.process for n in self.cluster if n.process and n.process.poll() is None]
        for process in running:
            process.terminate()
        end = time.monotonic() + STOP_SECONDS_MAX
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            self._wait(max(0.0, end - time.monotonic()))
        for process in running:
            if process.poll() is None:
                limit = f"{STOP_SECONDS_MAX:.0f} s"
                self.say(f"process {process.pid} did not stop within {limit}; killing it")
                process.kill()
                process.wait()
        self._drain()
        os.close(self._parent_write)

    def say(self, message: str) -> None:
        self._output.say(message)

    def _watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def _wait(self, seconds: float | None) -> None:
        for key, _ in self._selector.select(seconds):
            # A callback may have closed the descriptor of another one.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _drain(self) -> None:
        """Print the last output before the end."""
        while any(key.fd in self._lines for key, _ in self._selector.select(0)):
            self._wait(0)

    def _show(self, node: NodeFiles, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        whole = self._lines.pop(descriptor, b"") + data
        if not data:  # the node is gone
            self._selector.unregister(descriptor)
            os.close(descriptor)
            node.log = -1
            whole += b"\n" if whole else b""
        else:
            whole, newline, rest = whole.rpartition(b"\n")
            self._lines[descriptor] = rest
            whole += newline
        if self._is_starting:
            for line in whole.decode(errors="replace").splitlines():
                self._reasons[node.id] = reason_in(line) or self._reasons.get(node.id, "")
        self._output.show(node, whole)


def _state_of(node: NodeFiles) -> str:
    assert node.process is not None, f"node {node.id} was never started"
    code = node.process.poll()
    if code is None:
        return "is not ready yet"
    return f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
