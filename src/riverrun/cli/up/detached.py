"""``riverrun up --detach``: starts the supervisor in the background and waits until it is ready.

The supervisor is ``riverrun up`` in a session of its own. Until the cluster is ready it shares our
standard error, and stops if we end. Then it closes its standard output, which tells us that its
announcement is complete.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from riverrun.cli.support.options import FAILED, USAGE, fail
from riverrun.cli.up.messages import announcement, runs_already
from riverrun.cli.up.state import SupervisedNode, UpState, supervisor_of

END_SECONDS_MAX = 60.0
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of the command line that shape a cluster. None: not given."""

    nodes: int | None = None
    port: int | None = None
    is_secure: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def unmet_by(self, state: UpState) -> list[str]:
        """The options that a running cluster does not have."""
        count = len(state.nodes) + len(state.missing)
        unmet = [f"--nodes {self.nodes}"] if self.nodes not in (None, count) else []
        ports = {int(node.client.rpartition(":")[2]) for node in state.nodes if node.id == 1}
        if self.port and ports and self.port not in ports:
            unmet.append(f"--port {self.port}")
        if self.is_secure and not state.security:
            unmet.append("--secure")
        texts = _settings_of(state.nodes)
        for name, value in self.settings.items():
            if any(file.get(name) != value for file in texts):
                unmet.append(f"--set {name}={value}")
        return unmet


def _settings_of(nodes: Sequence[SupervisedNode]) -> list[dict[str, str]]:
    """The settings in the files of the nodes, as texts. Files that cannot be read are left out."""
    from riverrun.server.settings import UnreadableFile, read_file

    found = []
    for node in nodes:
        with contextlib.suppress(UnreadableFile):
            found.append(read_file(Path(node.config)))
    return found


def start_detached(
    words: Sequence[str], data: Path | None, wanted: Wanted, *, as_json: bool
) -> int:
    """Returns the exit code. ``data`` may be in use already; None if it will be chosen."""
    if data is not None and (supervisor := supervisor_of(data)) is not None:
        if (state := UpState.read(data)) is not None and (unmet := wanted.unmet_by(state)):
            first, remedy = runs_already(data, supervisor).split("\n", 1)
            fail(f"{first}, without {' and '.join(unmet)}\n{remedy}", USAGE)
        return _report_running(data, supervisor, as_json=as_json)
    command = [sys.executable, "-m", "riverrun.cli", "up", "--detached", *words]
    command += ["--json"] if as_json else []
    held, holding = os.pipe()
    process = subprocess.Popen(
        [*command, "--parent-fd", str(held)],
        pass_fds=(held,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(held)
    assert process.stdout is not None, "its output is a pipe"
    try:
        with process.stdout:
            announced = process.stdout.read()
        if announced:
            sys.stdout.write(announced.decode())
            sys.stdout.flush()
            return 0
        code = process.wait(END_SECONDS_MAX)
        return code if code > 0 else FAILED
    except KeyboardInterrupt:
        os.close(holding)  # the supervisor stops the nodes that it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS_MAX)
        return INTERRUPTED
    except subprocess.TimeoutExpired:
        fail(f"process {process.pid} did not start the cluster and has not ended", FAILED)


def _report_running(data: Path, supervisor: int, *, as_json: bool) -> int:
    """The output of the call that started the cluster, and the nodes that have ended since.
    Returns the exit code of ``--status``."""
    state = UpState.read(data)
    if state is None or state.pid != supervisor or not state.is_ready:
        fail(f"a cluster is starting or stopping with {data} (process {supervisor}); try again")
    first, remedy = runs_already(data, supervisor).split("\n", 1)
    running = [node for node in state.nodes if node.running_pid() is not None]
    ended = [node for node in state.nodes if node not in running]
    if not running:
        fail(f"{first}, but all its nodes have ended\n{remedy}", FAILED)
    print(f"riverrun: {first}; the options of this call have no effect", file=sys.stderr)
    print(announcement(replace(state, nodes=running), ended, as_json=as_json))
    return FAILED if ended or state.missing else 0
