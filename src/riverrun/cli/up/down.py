"""``riverrun down``: stops the cluster that ``riverrun up`` started, and waits for its end."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from riverrun.cli.support.options import FAILED, NOT_FOUND, fail

if TYPE_CHECKING:
    from riverrun.cli.up.state import UpState

KILL_SECONDS_MAX = 10.0


def register(app: typer.Typer) -> None:
    app.command("down")(down)


def down(
    data: Path = typer.Option(
        Path("data"), "--data", help="The directory of the cluster, as for `riverrun up`."
    ),
    kill: bool = typer.Option(
        False, "--kill", help="Kill the nodes instead of stopping them, as a crash would."
    ),
    wait_seconds: float = typer.Option(
        60.0, "--timeout", min=0, help="Seconds to wait until all processes have ended."
    ),
) -> None:
    """Stop a cluster that `riverrun up` started.

    The data stays, unless the cluster was started with --ephemeral. Exit codes: 0 it has ended,
    1 it has not ended in time, 4 no cluster runs there.

    \b
    riverrun down
    riverrun down --data /var/tmp/demo
    riverrun down --kill
    """
    from riverrun.cli.up.state import UpState, supervisor_of
    from riverrun.cli.up.status import none_runs, state_of

    directory = data.absolute()
    if supervisor_of(directory) is None:
        _clean_up(UpState.read(directory), directory)
        fail(none_runs(directory), NOT_FOUND)
    state = state_of(directory)
    if kill:
        _kill(state, directory)
        print(f"The cluster in {directory} was killed{_data_in_words(state)}.")
        return
    _stop(state, directory, wait_seconds)
    print(f"The cluster in {directory} has stopped{_data_in_words(state)}.")
    _report_others(state)


def _report_others(state: UpState) -> None:
    """Nodes that were started again by hand have another parent."""
    from riverrun.cli.up.messages import ourselves

    for node in state.nodes:
        if node.running_pid() is not None:
            stop = f"{ourselves()} stop --config {node.config}"
            print(
                f"riverrun: {node.name} was started elsewhere and keeps running; stop it with "
                f"`{stop}`",
                file=sys.stderr,
            )


def _data_in_words(state: UpState) -> str:
    return "; its data is removed" if state.is_ephemeral else ""


def _stop(state: UpState, directory: Path, wait_seconds: float) -> None:
    from riverrun.cli.support.progress import ProgressLine
    from riverrun.cli.support.signals import send_and_wait
    from riverrun.cli.up.state import supervisor_of

    began = time.monotonic()
    line = ProgressLine(began, is_wanted=True)

    def show(_left: float) -> None:
        left = [str(node.id) for node in state.nodes if node.running_pid() is not None]
        nodes = (
            f"node{'s' if len(left) > 1 else ''} {', '.join(left)}" if left else "the supervisor"
        )
        line.update(time.monotonic(), lambda now: f"waiting for {nodes} ({now - began:.0f} s)")

    has_ended = send_and_wait(
        state.pid,
        signal.SIGTERM,
        wait_seconds,
        is_owner=lambda: supervisor_of(directory) == state.pid,
        waiting=show,
    )
    line.clear()
    if not has_ended:
        named = f"the cluster in {directory} (process {state.pid})"
        fail(f"{named} has not ended within {wait_seconds:g} s; --kill ends it at once", FAILED)


def _kill(state: UpState, directory: Path) -> None:
    """Kill the supervisor first: it would report the nodes that end. Then the nodes, also those
    that were started again by hand."""
    from riverrun.cli.support.signals import send_and_wait
    from riverrun.cli.up.state import supervisor_of

    send_and_wait(
        state.pid,
        signal.SIGKILL,
        KILL_SECONDS_MAX,
        is_owner=lambda: supervisor_of(directory) == state.pid,
    )
    for node in state.nodes:
        pid = node.running_pid()
        if pid is not None:
            send_and_wait(
                pid,
                signal.SIGKILL,
                KILL_SECONDS_MAX,
                is_owner=lambda node=node, pid=pid: node.running_pid() == pid,  # type: ignore[misc]
            )
    _clean_up(state, directory)


def _clean_up(state: UpState | None, directory: Path) -> None:
    """Remove the files of a supervisor that was killed, and the data if it is temporary."""
    from riverrun.cli.up.state import EPHEMERAL_PREFIX, remove_files

    if state is None:
        return
    remove_files(directory)
    for draft in directory.glob("node-*.toml.starting"):
        draft.unlink(missing_ok=True)
    if state.is_ephemeral and directory.name.startswith(EPHEMERAL_PREFIX):
        shutil.rmtree(directory, ignore_errors=True)
