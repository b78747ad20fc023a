"""The marker of a replica that lost synced records.

It is a file in the partition's directory. It stays until the loss is
reported to the cluster, also across restarts.
"""

from __future__ import annotations

import contextlib
import os

from riverrun.ports.files import Files, read_whole, write_atomically

LOSS = "replica-loss"


def write_loss(files: Files, path: str, description: str) -> None:
    """Durable when it returns."""
    write_atomically(files, os.path.join(path, LOSS), description.encode())


def read_loss(files: Files, path: str) -> str | None:
    """The description of a loss that the last process did not report, if there is one."""
    name = os.path.join(path, LOSS)
    if not files.exists(name):
        return None
    return read_whole(files, name).decode(errors="replace") or "lost"


def remove_loss(files: Files, path: str) -> None:
    """The loss was reported: remove the marker. Waits for the disk."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(os.path.join(path, LOSS))
        files.sync_directory(path)
