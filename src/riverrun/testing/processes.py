"""The processes of a test cluster: start, faults, end.

One folder belongs to one cluster:

- ``data/``: the data and settings of the nodes, written by ``riverrun up``
- ``cluster.log``: the output of all processes
- ``cluster.json``: addresses and process ids, for all test processes that share the cluster
- ``cluster.lock``: held while ``cluster.json`` changes
- ``alive``: a FIFO that each test process holds open for writing. The nodes stop at its end, so
  the kernel stops them when the last test process ends, even if that was killed with -9.
- ``users``: a file that each test process holds a shared lock on. The last one deletes the folder;
  folders of killed test processes are deleted by the next start of any cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from riverrun.testing.faults.control import FaultsFile, NodeFaults

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
KILL_SECONDS_MAX: Final = 10.0
STALE_SECONDS: Final = 60.0
"""A younger folder without a lock may belong to a cluster that is about to start."""
FOLDER_PREFIX: Final = "riverrun-testing-"
LOG_TAIL_CHARACTERS: Final = 8_000
ENVIRONMENT_PREFIX: Final = "RIVERRUN_"
NODE_MODULE: Final = "riverrun.testing.faults.node"
CONTROLLER_PORT_ABOVE: Final = 1
"""``riverrun up`` gives a node the port for clients and the next two."""

Settings = Mapping[str, str | int | float | bool]


class ClusterError(Exception):
    """The cluster did not start, or a node is not in the state that the call needs."""


class ClusterGone(ClusterError):
    """The processes of a shared cluster have ended."""


class NodeEntry(msgspec.Struct):
    """One node in ``cluster.json``."""

    id: int
    client: str
    http: str
    data: str
    config: str
    pid: int | None
    """None while the node is not running."""


class ClusterFile(msgspec.Struct):
    """The content of ``cluster.json``."""

    bootstrap: str
    up_pid: int
    nodes: list[NodeEntry]
    cut_off: list[int] = []
    """Nodes that are separated from all others."""
    full: list[int] = []
    """Nodes with a full disk."""


class UpOutput(msgspec.Struct):
    """The line that ``riverrun up --json`` prints."""

    bootstrap: str
    nodes: list[NodeEntry]
    missing: list[object] = msgspec.field(default_factory=list)


def default_settings(nodes: int) -> dict[str, str]:
    """Settings of test clusters: no delays, little work in the background."""
    return {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": str(min(nodes, 3)),
        "log.segment.bytes": str(16 * 1024 * 1024),
        "log.scrub.interval.ms": "-1",
        "log.full.leadership.ms": "500",
    }


def setting_text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ClusterProcesses:
    """The cluster in one folder. Created by ``start`` or, in another test process, ``attach``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: list[subprocess.Popen[bytes]] = []
        self._users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._users, fcntl.LOCK_SH)
        self._alive = -1

    @classmethod
    def start(
        cls, *, nodes: int, settings: Settings, timeout_s: float = START_SECONDS_MAX
    ) -> ClusterProcesses:
        """Start a cluster in a new temporary folder. Returns when all nodes serve clients."""
        remove_stale_folders(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        os.mkfifo(folder / "alive", 0o600)
        processes = cls(folder)
        try:
            processes._launch(nodes, settings, timeout_s)
        except BaseException:
            processes.close()
            raise
        return processes

    @classmethod
    def attach(cls, folder: Path) -> ClusterProcesses:
        """Use a cluster that another test process started. Raises ClusterGone."""
        try:
            alive = os.open(folder / "alive", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            raise ClusterGone(f"the cluster in {folder} has ended") from error
        processes = cls(folder)
        processes._alive = alive
        return processes

    def _launch(self, nodes: int, settings: Settings, timeout_s: float) -> None:
        reader = self._open_alive()
        self._alive = os.open(self.folder / "alive", os.O_WRONLY)
        texts = default_settings(nodes)
        texts |= {name: setting_text(value) for name, value in settings.items()}
        command = ["riverrun", "up", "--json", "--nodes", str(nodes), "--port", "0"]
        command += ["--data", str(self.folder / "data"), "--parent-fd", str(reader)]
        command += ["--node-module", NODE_MODULE]
        command += [word for pair in texts.items() for word in ("--set", "=".join(pair))]
        try:
            up = self._spawn(command, pass_fds=(reader,), stdout=subprocess.PIPE)
        finally:
            os.close(reader)
        assert up.stdout is not None, "standard output is a pipe"
        with up.stdout:
            line = _read_line(up.stdout.fileno(), timeout_s)
        output = msgspec.json.decode(line, type=UpOutput) if line else None
        if output is None or output.missing:
            up.terminate()
            _wait(up, STOP_SECONDS_MAX)
            raise ClusterError(f"the cluster did not start; its log:\n{self.log_tail()}")
        self._save(ClusterFile(output.bootstrap, up.pid, output.nodes))

    def _open_alive(self) -> int:
        """The end of the FIFO that a node watches."""
        return os.open(self.folder / "alive", os.O_RDONLY | os.O_NONBLOCK)

    def _spawn(
        self, module: Sequence[str], *, pass_fds: Sequence[int], stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Run a module in a session of its own: Ctrl-C must not reach it."""
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(ENVIRONMENT_PREFIX)
        }
        with open(self.folder / "cluster.log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                pass_fds=pass_fds,
                start_new_session=True,
                env=environment,
            )
        self._children.append(process)
        return process

    # State

    @property
    def state(self) -> ClusterFile:
        return msgspec.json.decode((self.folder / "cluster.json").read_bytes(), type=ClusterFile)

    def _save(self, state: ClusterFile) -> None:
        draft = self.folder / f"cluster.json.{os.getpid()}"
        draft.write_bytes(msgspec.json.encode(state))
        draft.replace(self.folder / "cluster.json")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[ClusterFile]:
        """The state, which is saved after its change. Threads and processes take turns."""
        with (self.folder / "cluster.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.state
            yield state
            self._save(state)

    def _set_pid(self, node_id: int, pid: int | None) -> None:
        with self._changing() as state:
            for node in state.nodes:
                if node.id == node_id:
                    node.pid = pid

    def node(self, node_id: int) -> NodeEntry:
        nodes = {node.id: node for node in self.state.nodes}
        if node_id not in nodes:
            raise ClusterError(f"there is no node {node_id}; nodes: {', '.join(map(str, nodes))}")
        return nodes[node_id]

    def logs(self) -> str:
        try:
            return (self.folder / "cluster.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_tail(self) -> str:
        return self.logs()[-LOG_TAIL_CHARACTERS:]

    # Faults

    def send_signal(self, node_id: int, number: signal.Signals) -> None:
        pid = self._running(node_id)
        if pid is None:
            raise ClusterError(f"node {node_id} is not running")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def end(self, node_id: int, number: signal.Signals, timeout_s: float) -> None:
        """Send a signal that ends the node, and wait for the end."""
        pid = self._running(node_id)
        if pid is None:
            raise ClusterError(f"node {node_id} is not running")
        if not _end(pid, number, timeout_s):
            raise ClusterError(f"node {node_id} did not end within {timeout_s:.0f} s")
        self._reap()
        self._set_pid(node_id, None)

    def start_node(self, node_id: int, timeout_s: float = START_SECONDS_MAX) -> None:
        """Start a node that was killed or stopped, with its data. Returns when it serves."""
        node = self.node(node_id)
        if self._running(node_id) is not None:
            raise ClusterError(f"node {node_id} is running")
        if node_id in self.state.cut_off:
            raise ClusterError(f"node {node_id} is cut off and could not join; reconnect it first")
        reader = self._open_alive()
        ready_read, ready_write = os.pipe()
        try:
            command = [NODE_MODULE, node.config, str(ready_write), str(reader)]
            process = self._spawn(command, pass_fds=(ready_write, reader))
            os.close(ready_write)
            ready_write = -1
            self._set_pid(node_id, process.pid)
            if _read_line(ready_read, timeout_s) != b"ready\n":
                process.kill()
                _wait(process, KILL_SECONDS_MAX)
                self._set_pid(node_id, None)
                raise ClusterError(f"node {node_id} did not start; log:\n{self.log_tail()}")
        finally:
            for descriptor in (reader, ready_read, ready_write):
                if descriptor >= 0:
                    os.close(descriptor)

    def set_cut_off(self, node_id: int, is_cut_off: bool) -> None:
        """Separate a node from all other nodes, or connect it again."""
        self.node(node_id)
        with self._changing() as state:
            if len(state.nodes) == 1:
                raise ClusterError("a single node has no other nodes to be cut off from")
            _set_member(state.cut_off, node_id, is_cut_off)
            self._inject(state)

    def set_full(self, node_id: int, is_full: bool) -> None:
        """Take all free space from a node's disk, or give it back."""
        self.node(node_id)
        with self._changing() as state:
            _set_member(state.full, node_id, is_full)
            self._inject(state)

    def _inject(self, state: ClusterFile) -> None:
        """Bring the faults of all nodes in line with the state."""
        for node in state.nodes:
            silent = [
                other
                for other in state.nodes
                if other.id != node.id and (node.id in state.cut_off or other.id in state.cut_off)
            ]
            place = FaultsFile(Path(node.config))
            faults = NodeFaults(
                unreachable_ports=tuple(port for other in silent for port in _ports(other)),
                is_disk_full=node.id in state.full,
            )
            if faults == place.read():
                continue
            place.write(faults)
            pid = self._running(node.id)
            if pid is not None:
                self._notify(node.id, pid, place)

    def _notify(self, node_id: int, pid: int, place: FaultsFile) -> None:
        try:
            place.notify(lambda: _is_stopped(pid))
        except OSError as error:
            if self._running(node_id) is None:  # it ended meanwhile; its next start reads the file
                return
            raise ClusterError(f"node {node_id} did not accept the fault: {error}") from error

    def _running(self, node_id: int) -> int | None:
        """The process id of a running node."""
        pid = self.node(node_id).pid
        return pid if pid is not None and self._is_ours(pid) else None

    def _is_ours(self, pid: int) -> bool:
        """Whether the process exists and belongs to this cluster. Ids of ended processes are
        assigned again, and a zombie has no command line."""
        try:
            return os.fsencode(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _reap(self) -> None:
        for process in self._children:
            process.poll()

    # End

    def close(self) -> bool:
        """Release the cluster. The last user ends it and deletes the folder; returns whether that
        happened. The nodes are killed, because nothing of their data is kept."""
        if self._users < 0:
            return False
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_last = True
        except BlockingIOError:
            is_last = False
        if is_last:
            self._kill_all()
        for descriptor in (self._alive, self._users):
            if descriptor >= 0:
                os.close(descriptor)
        self._alive = self._users = -1
        if is_last:
            shutil.rmtree(self.folder, ignore_errors=True)
        return is_last

    def _kill_all(self) -> None:
        """Kill the nodes; ``up`` then ends by itself and leaves no zombies."""
        if (self.folder / "cluster.json").exists():
            state = self.state
            pids = [node.pid for node in state.nodes if node.pid is not None]
            for pid in filter(self._is_ours, pids):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in filter(self._is_ours, pids):
                _end(pid, signal.SIGKILL, KILL_SECONDS_MAX)
            if self._is_ours(state.up_pid):
                _end(state.up_pid, signal.SIGTERM, KILL_SECONDS_MAX)
                if self._is_ours(state.up_pid):
                    _end(state.up_pid, signal.SIGKILL, KILL_SECONDS_MAX)
        for process in self._children:
            if process.poll() is None:
                process.terminate()
                _wait(process, KILL_SECONDS_MAX)


def remove_stale_folders(parent: Path) -> None:
    """Delete the folders of test processes that were killed."""
    for folder in sorted(parent.glob(f"{FOLDER_PREFIX}*")):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < STALE_SECONDS:
                continue
            users = os.open(folder / "users", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(users)


def _ports(node: NodeEntry) -> tuple[int, int]:
    """The ports that other nodes connect to."""
    port = int(node.client.rpartition(":")[2])
    return port, port + CONTROLLER_PORT_ABOVE


def _set_member(members: list[int], member: int, is_member: bool) -> None:
    members[:] = sorted({*members, member} if is_member else {*members} - {member})


def _is_stopped(pid: int) -> bool:
    """Whether SIGSTOP suspended the process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] == "T"


def _read_line(descriptor: int, timeout_s: float) -> bytes:
    """One line; empty at the end of the pipe or after the timeout."""
    end = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not _is_readable(descriptor, left):
            return b""
        data = os.read(descriptor, 65_536)
        if not data:
            return b""
        line += data
    return line


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    waiting = select.poll()  # select() cannot take descriptors above 1023
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(timeout_s * 1000))


def _end(pid: int, number: signal.Signals, timeout_s: float) -> bool:
    """Send a signal to a process that may not be our child. Returns whether it ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        return _is_readable(descriptor, timeout_s)
    finally:
        os.close(descriptor)


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait for the end of a child; kill it after the timeout."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
