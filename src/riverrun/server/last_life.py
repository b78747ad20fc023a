"""Whether this node still has all that its last life acknowledged.

A replica that lost the end of its log must not lead by what the controller remembers of it. So a
broker that registers says which registration it continues (KIP-966), and says so only when nothing
can be missing: after a clean stop, or when the process alone died. The kernel, and with it what was
written and not yet synced, is the same as long as the boot id is; then recovery must have found
every log whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final

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
    epoch, boot = _read(files, _path(directory))
    return epoch if boot_id and boot == boot_id else UNKNOWN


def remember(files: Files, directory: LogDirectory, boot_id: str, epoch: int) -> None:
    """Note a registration. Without room on the disk it is not noted, which is safe."""
    content = json.dumps({"version": 0, "brokerEpoch": epoch, "bootId": boot_id})
    with contextlib.suppress(OSError):
        write_atomically(files, _path(directory), content.encode())


def _path(directory: LogDirectory) -> str:
    return os.path.join(directory.path, NAME)


def _read(files: Files, path: str) -> tuple[int, str]:
    if not files.exists(path):
        return UNKNOWN, ""
    try:
        content = json.loads(read_whole(files, path))
        return int(content["brokerEpoch"]), str(content["bootId"])
    except (OSError, ValueError, KeyError, TypeError):
        return UNKNOWN, ""
