"""``riverrun stop``: stops a node on this machine, or a unit of several brokers, found by the lock
of its data directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import typer

from riverrun.cli.support.options import FAILED, NOT_FOUND, USAGE, fail


def register(app: typer.Typer) -> None:
    app.command("stop")(stop)


def stop(
    config: Path | None = typer.Option(
        None, "--config", "-c", help="The node's file, such as those written by `riverrun up`."
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
    The directory of a unit that `riverrun start --processes` runs stops all its brokers.

    \b
    riverrun stop --config data/node-2.toml
    riverrun stop --data /var/lib/riverrun --kill
    """
    from riverrun.cli.support.signals import send_and_wait
    from riverrun.model.names import LOCK
    from riverrun.ports.files import lock_owner

    bases = _directories(config, data)
    directory = bases[0]
    lock = os.path.join(directory, LOCK)
    try:
        process = lock_owner(lock)
        brokers = _brokers(bases)
    except PermissionError as error:
        fail(f"cannot read {error.filename}: {error.strerror}", FAILED)
    if process is None:
        fail(f"no node runs with the data directory {directory}", NOT_FOUND)
    number = signal.SIGKILL if kill else signal.SIGTERM
    has_ended = send_and_wait(
        process, number, wait_seconds, is_owner=lambda: lock_owner(lock) == process
    )
    if kill:
        # Brokers would stop cleanly when they notice that their supervisor is gone.
        for path, broker in brokers.items():
            send_and_wait(broker, number, wait_seconds, is_owner=_is_owner(path, broker))
    what = f"the unit of {len(brokers)} brokers" if brokers else "the node"
    named = f"{what} in {directory} (process {process})"
    if not has_ended:
        fail(f"{named} has not ended within {wait_seconds:g} s; --kill ends it at once", FAILED)
    done = "was killed" if kill else "has stopped"
    print(f"{named[0].upper()}{named[1:]} {done}.")


def _brokers(bases: list[str]) -> dict[str, int]:
    """The running brokers of a unit: their processes by the path of their lock."""
    from riverrun.model.names import LOCK
    from riverrun.ports.files import lock_owner

    paths = [str(path) for base in bases for path in sorted(Path(base).glob(f"node-*/{LOCK}"))]
    owners = {path: lock_owner(path) for path in paths}
    return {path: owner for path, owner in owners.items() if owner is not None}


def _is_owner(path: str, process: int) -> Callable[[], bool]:
    from riverrun.ports.files import lock_owner

    return lambda: lock_owner(path) == process


def _directories(config: Path | None, data: Path | None) -> list[str]:
    """The data directories. ``log.dirs`` in the file takes precedence over the environment, so
    that no other node is stopped by mistake."""
    from riverrun.model.settings import SettingError
    from riverrun.server.host.members import base_directories
    from riverrun.server.settings import read_file, settings_texts

    if (config is None) == (data is None):
        fail("name the node with either --config FILE or --data DIRECTORY", USAGE)
    if config is None:
        return base_directories({"log.dirs": str(data)})
    try:
        texts = settings_texts(config, {}, os.environ) | read_file(config)
        if "log.dirs" not in texts and not texts.get("processes"):
            fail(f"{config} names no log.dirs; use --data DIRECTORY", USAGE)
        return base_directories(texts)
    except SettingError as error:
        fail(str(error), USAGE)
