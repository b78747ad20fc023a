"""Disk space reserved for the metadata when the disk is full.

A node with a full disk must still replicate leader changes, and persist its votes. So a small
file is kept that can be deleted for that. It is created again when there is space.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from riverrun.ports.files import Files

NAME: Final = "reserve"
RESERVE_BYTES: Final = 256 * 1024
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


class Reserve:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = os.path.join(folder, NAME)
        self._is_held = False

    def hold(self) -> None:
        """Create the file if there is space. May block on the disk."""
        if self._is_held:
            return
        with (
            contextlib.suppress(OSError),
            contextlib.closing(self._files.open(self._path, create=True)) as file,
        ):
            if file.size() < RESERVE_BYTES:
                file.write_at(0, bytes(RESERVE_BYTES))
            self._is_held = True

    def release(self) -> bool:
        """Free the space; returns whether there was any."""
        if not self._is_held:
            return False
        self._is_held = False
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._path)
        return True
