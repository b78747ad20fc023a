"""Disk space reserved for the metadata when the disk is full.

A node with a full disk must still replicate leader changes, and persist its votes. So a small file
is kept that can be shortened for that. It is freed in small parts, because other writers take what
the metadata does not use at once. It is filled up again when there is space.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from riverrun.ports.files import Files

NAME: Final = "reserve"
RESERVE_BYTES: Final = 1 << 20
PART_BYTES: Final = 16 << 10
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


class Reserve:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._path = os.path.join(folder, NAME)
        self._held_bytes = 0

    def hold(self) -> None:
        """Fill the file up if there is space. May block on the disk."""
        if self._held_bytes >= RESERVE_BYTES:
            return
        with (
            contextlib.suppress(OSError),
            contextlib.closing(self._files.open(self._path, create=True)) as file,
        ):
            size = file.size()
            self._held_bytes = min(size, RESERVE_BYTES)
            # The last free space is of more use to the metadata itself.
            if size < RESERVE_BYTES and self._files.free_bytes(self._folder) > 2 * RESERVE_BYTES:
                try:
                    file.write_at(size, bytes(RESERVE_BYTES - size))
                finally:
                    self._held_bytes = min(file.size(), RESERVE_BYTES)

    def release(self) -> bool:
        """Free some space; returns whether there was any."""
        if not self._held_bytes:
            return False
        self._held_bytes = max(self._held_bytes - PART_BYTES, 0)
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(self._files.open(self._path)) as file,
        ):
            file.truncate(self._held_bytes)
        return True
