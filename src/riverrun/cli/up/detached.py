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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from riverrun.cli.support.options import FAILED, fail
from riverrun.cli.up.messages import announcement, runs_already
from riverrun.cli.up.state import UpState, supervisor_of

END_SECONDS_MAX = 60.0
INTERRUPTED = 130


def start_detached(words: Sequence[str], data: Path | None, *, as_json: bool) -> int:
    """Returns the exit code. ``data`` may be in use already; None if it will be chosen."""
    if data is not None and (supervisor := supervisor_of(data)) is not None:
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
