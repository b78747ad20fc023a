"""Removing files and directories that are no longer used. All of it waits for the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from msgspec import Struct

from riverrun.ports.files import Files


class Removal(Struct, frozen=True):
    """The directory of a deleted log; ``run`` waits for the disk."""

    files: Files
    path: str

    def run(self) -> None:
        if self.files.is_directory(self.path):
            for name in self.files.list_directory(self.path):
                self.files.unlink(os.path.join(self.path, name))
            self.files.remove_directory(self.path)
            self.files.sync_directory(os.path.dirname(self.path))


def unlink_all(files: Files, paths: Iterable[str]) -> None:
    """Remove files durably. Files that do not exist are skipped."""
    directories: dict[str, None] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)
            directories[os.path.dirname(path)] = None
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            files.sync_directory(directory)
