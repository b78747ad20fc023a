"""Files. Positions are explicit, the process buffers nothing, and errors are ``OSError``.

Calls that may block on the disk (``sync``, ``read_at`` of cold data, all directory operations) run
in a thread once the node serves clients. ``write_at`` writes to the page cache and
``read_cached_at`` never blocks, so the event loop may call both.
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
        """Up to ``length`` bytes; fewer only at the end of the file. May block on the disk."""
        ...

    def read_cached_at(self, position: int, length: int) -> Buffer | None:
        """Like ``read_at``, but None if part of the data is not in the page cache.

        The buffer is reused when no reference to the result or a view of it remains. Only the event
        loop may call this.
        """
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Write all of the data. On OSError the file is truncated to its previous size."""
        ...

    def truncate(self, size: int) -> None: ...

    def drop_cached(self, position: int, length: int) -> None:
        """Let the next read of this range come from the disk, as far as the system can. Only synced
        data can leave the page cache. May block on the disk."""
        ...

    def sync(self) -> None:
        """Make content and size durable. Do not retry: an error leaves the disk state unknown."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """The file system of a node. Paths are absolute."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError unless ``create`` is true."""
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents. It may exist already."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing ``new``. Durable only after ``sync_directory``."""
        ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Make created, renamed and removed entries durable."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def identity(self, path: str) -> str:
        """A value that differs for every other file, for copies, and after any change."""
        ...

    def lock(self, path: str) -> Lock:
        """Lock a file for this process and write the process id to it. Raises BlockingIOError if
        another process has locked it."""
        ...


def read_whole(files: Files, path: str) -> bytes:
    with contextlib.closing(files.open(path)) as file:
        return file.read_at(0, file.size())


def make_directory_durably(files: Files, path: str) -> None:
    """Create a directory and its parents, and sync their names."""
    missing = []
    while path not in ("", os.sep) and not files.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        files.make_directory(missing[0])
        for made in missing:
            files.sync_directory(os.path.dirname(made) or os.curdir)


def write_atomically(files: Files, path: str, data: bytes, *, sync: bool = True) -> None:
    """Replace a small file. Readers see the old or the new content, never a mixture."""
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
    """Repeat short writes, which a full disk or a kernel limit causes, until all is written."""
    view = memoryview(data)
    while view:
        written = write(view, position)
        view = view[written:]
        position += written


class ReadBuffers:
    """Buffers for large reads, reused when no reference to them remains.

    Reading a megabyte into fresh memory costs more in page faults than the copy itself. Users of a
    buffer, such as a transport under backpressure, hold a view of it. The reference count shows
    which buffers are free, so no user has to return one.
    """

    SIZE = 1 << 20
    COUNT_MAX = 32
    READ_BYTES_MIN = 16 * 1024
    _UNUSED = 3  # the list, the loop variable and the argument of getrefcount

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def take(self, length: int) -> bytearray:
        """At least ``length`` bytes with arbitrary content."""
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
    __slots__ = ("_buffers", "_descriptor", "_has_nowait")

    def __init__(self, descriptor: int, buffers: ReadBuffers) -> None:
        self._descriptor = descriptor
        self._buffers = buffers
        self._has_nowait = True

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
        if self._has_nowait:
            view = memoryview(self._buffers.take(length))[:length]
            try:
                count = os.preadv(self._descriptor, [view], position, os.RWF_NOWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EINVAL):
                    raise
                self._has_nowait = False  # for example tmpfs, whose files are in memory
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
            self._truncate_tail(position)
            raise
        try:
            _write_fully(lambda view, at: os.pwrite(self._descriptor, view, at), data, position)
        except OSError:
            self._truncate_tail(position)
            raise

    def _truncate_tail(self, position: int) -> None:
        # Only writes at the end extend a file, so only they leave a partial write to truncate.
        if self.size() > position:
            os.ftruncate(self._descriptor, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def drop_cached(self, position: int, length: int) -> None:
        if sys.platform == "linux" and length > 0:  # A length of 0 means all of the file.
            os.posix_fadvise(self._descriptor, position, length, os.POSIX_FADV_DONTNEED)

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
        # Inode numbers are reused; the change time cannot be set back.
        return f"{status.st_dev}:{status.st_ino}:{status.st_ctime_ns}"

    def lock(self, path: str) -> OsLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        with contextlib.suppress(OSError):  # a node must start on a full disk
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return OsLock(descriptor)


def lock_owner(path: str) -> int | None:
    """The process that holds a lock of ``OsFiles.lock``; None if there is none.

    It never tries to lock the file, because a node that starts at that moment would fail. The file
    holds the id of its last owner, which may have been killed, and its id may be in use again. So
    the process must have this very file open.
    """
    try:
        with open(path, "rb") as file:
            owner = int(file.read() or 0)
            status = os.fstat(file.fileno())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if owner <= 0:
        return None
    descriptors = f"/proc/{owner}/fd"
    if not os.path.isdir("/proc/self/fd"):
        return owner if _is_locked(path) else None
    try:
        for name in os.listdir(descriptors):
            with contextlib.suppress(FileNotFoundError):
                opened = os.stat(f"{descriptors}/{name}")
                if (opened.st_dev, opened.st_ino) == (status.st_dev, status.st_ino):
                    return owner
    except FileNotFoundError:
        return None
    return None


def _is_locked(path: str) -> bool:
    """Only for systems without /proc."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
