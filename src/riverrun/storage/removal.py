"""Removing files and directories that are no longer used. All of it waits for the disk.

Removing needs no space, so it also works on a full disk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import structlog
from msgspec import Struct

from riverrun.ports.files import Files
from riverrun.storage.checkpoints import PARTITION_METADATA
from riverrun.storage.space_monitor import is_disk_full

DELETE_SUFFIX = "-delete"
_DELETED_NAME = re.compile(r".*\.[0-9a-f]{32}-delete$")
_NAME_BYTES_MAX = 255
_logger = structlog.get_logger("riverrun.storage")


class Removal(Struct):
    """The directory of a deleted log, or some files of a log."""

    files: Files
    path: str
    names: tuple[str, ...] | None = None
    """Files in the directory; None stands for the directory itself."""
    has_failed: bool = False

    def run(self) -> bool:
        """Remove durably. Returns False if the disk refuses; the caller tries again later."""
        try:
            if self.names is None:
                self._remove_directory()
            else:
                self._remove_files(self.names)
        except OSError as error:
            if not self.has_failed:
                _logger.warning("files not removed yet", path=self.path, error=str(error))
            self.has_failed = True
            return False
        return True

    def _remove_directory(self) -> None:
        remove_directory(self.files, self.path)
        self.files.sync_directory(os.path.dirname(self.path))

    def _remove_files(self, names: tuple[str, ...]) -> None:
        with contextlib.suppress(FileNotFoundError):  # the whole log was deleted
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(os.path.join(self.path, name))
            self.files.sync_directory(self.path)


def is_removed(name: str) -> bool:
    """Whether a directory has the name of a deleted log."""
    return _DELETED_NAME.match(name) is not None


def begin_removal(files: Files, path: str, unique: str) -> Removal:
    """Rename the directory of a deleted log, so that a new log may have its name at once."""
    suffix = f".{unique}{DELETE_SUFFIX}"
    name = os.path.basename(path)[: _NAME_BYTES_MAX - len(suffix)] + suffix
    renamed = os.path.join(os.path.dirname(path), name)
    try:
        files.rename(path, renamed)
    except OSError as error:
        if not is_disk_full(error):
            raise
        # The longer name needs a block of the parent directory. The files of the log free some.
        _remove_content(files, path)
        files.rename(path, renamed)
    return Removal(files, renamed)


@contextlib.contextmanager
def removed_on_failure(files: Files, path: str, *, is_new: bool) -> Iterator[None]:
    """Remove a new directory again if its files cannot be made. Its partition may move away before
    there is space, and then no log would own the directory."""
    try:
        yield
    except OSError:
        if is_new:
            with contextlib.suppress(OSError):
                remove_directory(files, path)
        raise


def remove_directory(files: Files, path: str) -> None:
    """Remove a directory of files, if it exists."""
    if files.is_directory(path):
        _remove_content(files, path)
        files.remove_directory(path)


def _remove_content(files: Files, path: str) -> None:
    """The topic id goes last: after a crash, a new topic of the same name would get the files that
    are left of a log without one."""
    for name in sorted(files.list_directory(path), key=PARTITION_METADATA.__eq__):
        files.unlink(os.path.join(path, name))
