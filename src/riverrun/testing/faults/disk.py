"""The files of a node on a disk that can be filled.

A filled disk has no free space. Only metadata may use the space that deleted and truncated files
return, because a node deletes a reserve for that. Everything else stays full until the test frees
the disk, so a test does not depend on the amount that it writes. Compaction runs in a process of
its own and is not limited.
"""

from __future__ import annotations

import errno
import os
import threading

from riverrun.model.names import METADATA_TOPIC
from riverrun.ports.files import Buffer, OsFile, OsFiles, ReadBuffers


class FillableDisk:
    """The free space of a disk, used by the event loop and by threads."""

    def __init__(self) -> None:
        self.free_bytes: int | None = None
        """None while the disk is not filled."""
        self._lock = threading.Lock()

    def set_full(self, is_full: bool) -> None:
        with self._lock:
            if not is_full:
                self.free_bytes = None
            elif self.free_bytes is None:
                self.free_bytes = 0

    def take(self, count: int, *, is_metadata: bool) -> None:
        """Raises OSError (ENOSPC) if there is not enough."""
        with self._lock:
            if self.free_bytes is None or count <= 0:
                return
            if count > self.free_bytes or not is_metadata:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.free_bytes -= count

    def give_back(self, count: int) -> None:
        with self._lock:
            if self.free_bytes is not None:
                self.free_bytes += count


class LimitedFile(OsFile):
    """A file that cannot grow on a full disk."""

    __slots__ = ("_is_metadata", "_space")

    def __init__(
        self, descriptor: int, buffers: ReadBuffers, space: FillableDisk, *, is_metadata: bool
    ) -> None:
        super().__init__(descriptor, buffers)
        self._space = space
        self._is_metadata = is_metadata

    def write_at(self, position: int, data: Buffer) -> None:
        if self._space.free_bytes is not None:
            growth = position + len(data) - self.size()
            self._space.take(growth, is_metadata=self._is_metadata)
        super().write_at(position, data)

    def truncate(self, size: int) -> None:
        if self._space.free_bytes is not None:
            growth = size - self.size()
            self._space.take(growth, is_metadata=self._is_metadata)
            self._space.give_back(max(0, -growth))
        super().truncate(size)


class LimitedFiles(OsFiles):
    """The real file system, with a limit that ``space`` holds."""

    def __init__(self, space: FillableDisk) -> None:
        super().__init__()
        self._space = space

    def open(self, path: str, *, create: bool = False) -> LimitedFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        is_metadata = os.path.basename(os.path.dirname(path)).startswith(METADATA_TOPIC)
        descriptor = os.open(path, flags, 0o644)
        return LimitedFile(descriptor, self._buffers, self._space, is_metadata=is_metadata)

    def rename(self, old: str, new: str) -> None:
        replaced = self.size(new) if os.path.isfile(new) else 0
        super().rename(old, new)
        self._space.give_back(replaced)

    def unlink(self, path: str) -> None:
        size = self.size(path)
        super().unlink(path)
        self._space.give_back(size)

    def free_bytes(self, path: str) -> int:
        found = self._space.free_bytes
        return super().free_bytes(path) if found is None else found
