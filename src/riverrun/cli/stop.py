"""``riverrun stop``: stops a node on this machine, found by the lock of its data directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import typer

from riverrun.cli.support.options import FAILED, NOT_FOUND, USAGE, fail


def register(app: typer.Typer) -> None:
    app.command("stop")(stop)


def stop(
    config: Path | None = typer.Option(
        None, "--config", "-c", help="The node's TOML file, such as those written by `riverrun up`."
    ),
    data: Path | None = typer.Option(
        None, "--data", "--data-dir", help="The node's data directory, instead of --config."
    ),
    kill: bool = typer.Option(
        False, "--kill", help="Send SIGKILL instead of SIGTERM, as a crash would."
    ),
    wait_seconds: float = typer.Option(
        60.0, "--timeout", min=0, help="Seconds to wait until the process has ended."
    ),
) -> None:
    """Stop a node on this machine and wait until it has ended.

    The node first moves its leaderships to other nodes. Exit code 4 means that it is not running.

    \b
    riverrun stop --config data/node-2.toml
    riverrun stop --data /var/lib/riverrun --kill
    """
    from riverrun.cli.support.signals import send_and_wait
    from riverrun.model.names import LOCK
    from riverrun.ports.files import lock_owner

    directory = _directory(config, data)
    lock = os.path.join(directory, LOCK)
    try:
        process = lock_owner(lock)
    except PermissionError as error:
        fail(f"cannot read {error.filename}: {error.strerror}", FAILED)
    if process is None:
        fail(f"no node runs with the data directory {directory}", NOT_FOUND)
    number = signal.SIGKILL if kill else signal.SIGTERM
    has_ended = send_and_wait(
        process, number, wait_seconds, is_owner=lambda: lock_owner(lock) == process
    )
    named = f"the node in {directory} (process {process})"
    if not has_ended:
        fail(f"{named} has not ended within {wait_seconds:g} s; --kill ends it at once", FAILED)
    done = "was killed" if kill else "has stopped"
    print(f"{named[0].upper()}{named[1:]} {done}.")


def _directory(config: Path | None, data: Path | None) -> str:
    """The data directory. ``log.dirs`` in the file takes precedence over the environment, so that
    no other node is stopped by mistake."""
    from riverrun.model.settings import SettingError
    from riverrun.server.main import settings_texts
    from riverrun.server.settings import read_file

    if (config is None) == (data is None):
        fail("name the node with either --config FILE or --data DIRECTORY", USAGE)
    if config is None:
        return os.path.abspath(str(data))
    try:
        named = read_file(config).get("log.dirs") or settings_texts(config, {}).get("log.dirs")
    except SettingError as error:
        fail(str(error), USAGE)
    if named is None:
        fail(f"{config} names no log.dirs; use --data DIRECTORY", USAGE)
    return os.path.abspath(named)
