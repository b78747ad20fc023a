"""Whether this node still has everything that its previous run acknowledged.

A replica that lost the end of its log must not be elected just because it is in the ISR or ELR. So
a broker sends the epoch of its previous registration when it registers (KIP-966), but only if
nothing can be missing. That holds after a clean stop. It also holds if only the process died: while
the boot id is the same, the kernel still has the unflushed data. Recovery must then have found
every log complete. The directory must also be the one that the previous run used. A copy taken
during that run and restored in its place also looks complete, but lacks the later records.
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
    """The epoch of the registration that this start continues; -1 if records may be missing.

    Call it after recovery. ``is_missing``: a log of this broker does not exist.
    """
    if is_missing or any(log.cut_bytes or log.is_corrupt for log in directory.logs.values()):
        return UNKNOWN
    if directory.was_clean:
        known = directory.previous_broker_epoch
        return UNKNOWN if known is None else known
    epoch, boot, identity = _read(files, _path(directory))
    is_same = boot == boot_id and identity == files.identity(_identity_file(directory))
    return epoch if boot_id and is_same else UNKNOWN


def store_epoch(files: Files, directory: LogDirectory, boot_id: str, epoch: int) -> None:
    """Store the epoch of a registration. On a full disk it is not stored, which is safe."""
    with contextlib.suppress(OSError):
        identity = files.identity(_identity_file(directory))
        content = {"version": 0, "brokerEpoch": epoch, "bootId": boot_id, "directory": identity}
        write_atomically(files, _path(directory), json.dumps(content).encode())


def _identity_file(directory: LogDirectory) -> str:
    """A file that is never rewritten while a node runs. A restored copy has another identity."""
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
