"""Whether this node still has all that its last life acknowledged.

A replica that lost the end of its log must not lead by what the controller remembers of it. So a
broker that registers says which registration it continues (KIP-966), and says so only when nothing
can be missing: after a clean stop, or when the process alone died. The kernel, and with it what was
written and not yet synced, is the same as long as the boot id is; then recovery must have found
every log whole. And the directory must be the one that the last life used: a copy of it, made while
that went on and put in its place, is whole as well, and lacks what came after.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final

from riverrun.model.names import META_PROPERTIES
from riverrun.ports.files import Files, read_whole, write_atomically
from riverrun.storage.directory import LogDirectory

NAME: Final = "broker-epoch-checkpoint"
UNKNOWN: Final = -1


def continued_epoch(
    files: Files, directory: LogDirectory, boot_id: str, *, is_missing: bool = False
) -> int:
    """The epoch of the registration that this start continues; -1 when something may be gone.

    To be asked when the logs are recovered. ``is_missing``: some log was not even found.
    """
    if is_missing or any(log.cut_bytes or log.is_corrupt for log in directory.logs.values()):
        return UNKNOWN
    if directory.was_clean:
        known = directory.previous_broker_epoch
        return UNKNOWN if known is None else known
    epoch, boot, place = _read(files, _path(directory))
    is_same = boot == boot_id and place == files.identity(_witness(directory))
    return epoch if boot_id and is_same else UNKNOWN


def store_epoch(files: Files, directory: LogDirectory, boot_id: str, epoch: int) -> None:
    """Note a registration. Without room on the disk it is not noted, which is safe."""
    with contextlib.suppress(OSError):
        place = files.identity(_witness(directory))
        content = {"version": 0, "brokerEpoch": epoch, "bootId": boot_id, "directory": place}
        write_atomically(files, _path(directory), json.dumps(content).encode())


def _witness(directory: LogDirectory) -> str:
    """A file that is not written again while a node lives; put back from a copy it is another."""
    return os.path.join(directory.path, META_PROPERTIES)


def _path(directory: LogDirectory) -> str:
    return os.path.join(directory.path, NAME)


def _read(files: Files, path: str) -> tuple[int, str, str]:
    if not files.exists(path):
        return UNKNOWN, "", ""
    try:
        content = json.loads(read_whole(files, path))
        return int(content["brokerEpoch"]), str(content["bootId"]), str(content["directory"])
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN, "", ""
