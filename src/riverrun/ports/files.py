"""Files. Positions are explicit, nothing is buffered in the process, errors are ``OSError``.

Calls that may wait for a disk (``sync``, ``read_at`` of cold data, everything on directories)
belong in a thread once the node serves clients; ``write_at`` goes to the page cache and
``read_cached_at`` never waits, so both may be called from the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Callable
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file."""

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file. May wait for the disk."""
        ...

    def read_cached_at(self, position: int, length: int) -> Buffer | None:
        """As ``read_at``, but None when (some of) it would have to come from the disk.

        The memory is used again once nobody holds the result or a view of it. For the loop only.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """All of it. When that fails the file is cut back to the size it had, and OSError
        raised.
        """
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make content and size durable. After an OSError nothing is known: never call it again."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """One node's file system. Paths are absolute."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; raises FileNotFoundError unless ``create``."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list_directory(self, path: str) -> list[str]:
        """Names, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; no error when it is there."""
        ...

    def remove_directory(self, path: str) -> None:
        """An empty one."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces ``new``. Durable only after ``sync_directory``."""
        ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in it durable."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def identity(self, path: str) -> str:
        """Tells a file that nobody has touched from all others, and from its copies."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file for this process; BlockingIOError when another holds it."""
        ...


def read_whole(files: Files, path: str) -> bytes:
    with contextlib.closing(files.open(path)) as file:
        return file.read_at(0, file.size())


def write_atomically(files: Files, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a small file as a whole: whoever reads it sees the old or the new content."""
    beside = path + ".tmp"
    if files.exists(beside):
        files.unlink(beside)
    with contextlib.closing(files.open(beside, create=True)) as file:
        file.write_at(0, data)
        if sync:
            file.sync()
    files.rename(beside, path)
    if sync:
        files.sync_directory(os.path.dirname(path))


def _write_fully(write: Callable[[memoryview, int], int], data: Buffer, position: int) -> None:
    """A write may be short, for lack of room or beyond the kernel's limit: go on until it fails."""
    view = memoryview(data)
    while view:
        written = write(view, position)
        view = view[written:]
        position += written


class ReadBuffers:
    """Memory for large reads, used again as soon as nobody holds it.

    A fetch of a megabyte into fresh memory costs more in page faults than the copy itself. Whoever
    got a buffer, a transport under backpressure for one, keeps it alive by holding a view of it, so
    the number of references tells which are free; no one has to give anything back.
    """

    SIZE = 1 << 20
    COUNT_MAX = 32
    READ_BYTES_MIN = 16 * 1024
    _UNUSED = 3  # the list, the loop's variable and the argument of getrefcount

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, length: int) -> bytearray:
        """At least that many bytes, of whatever content."""
        if not self.READ_BYTES_MIN <= length <= self.SIZE:
            return bytearray(length)
        for buffer in self._buffers:
            if sys.getrefcount(buffer) == self._UNUSED:
                return buffer
        if len(self._buffers) == self.COUNT_MAX:
            return bytearray(length)
        self._buffers.append(bytearray(self.SIZE))
        return self._buffers[-1]


class OsFile:
    __slots__ = ("_buffers", "_descriptor", "_may_not_wait")

    def __init__(self, descriptor: int, buffers: ReadBuffers) -> None:
        self._descriptor = descriptor
        self._buffers = buffers
        self._may_not_wait = True

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def read_cached_at(self, position: int, length: int) -> Buffer | None:
        if self._may_not_wait:
            view = memoryview(self._buffers.take(length))[:length]
            try:
                count = os.preadv(self._descriptor, [view], position, os.RWF_NOWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                    raise
                self._may_not_wait = False  # tmpfs, for one: its files are memory anyway
            else:
                if count < length and position + count < self.size():
                    return None
                return view if count == length else view[:count]
        return self.read_at(position, length)

    def write_at(self, position: int, data: Buffer) -> None:
        try:
            if os.pwrite(self._descriptor, data, position) == len(data):
                return
        except OSError:
            self._cut_back(position)
            raise
        try:
            _write_fully(lambda view, at: os.pwrite(self._descriptor, view, at), data, position)
        except OSError:
            self._cut_back(position)
            raise

    def _cut_back(self, position: int) -> None:
        # Only writes at the end grow a file, and only those leave a torn tail to be cut.
        if self.size() > position:
            os.ftruncate(self._descriptor, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OsLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)


class OsFiles:
    """The real file system."""

    def __init__(self) -> None:
        self._buffers = ReadBuffers()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644), self._buffers)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def identity(self, path: str) -> str:
        status = os.stat(path)
        # Numbers of files are given again; the time of the last change cannot be put back.
        return f"{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}"

    def lock(self, path: str) -> OsLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return OsLock(descriptor)
