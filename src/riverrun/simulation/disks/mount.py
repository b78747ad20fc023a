"""The ``Files`` port of a process, on the simulated disk of its machine.

Handles become invalid when the process stops. A blocking operation takes virtual time. It suspends
the current thread, or the whole event loop if it is called there, as in production.
"""

from __future__ import annotations

import errno
import os
import zlib
from typing import TYPE_CHECKING

from riverrun.ports.files import Buffer, File, Lock
from riverrun.simulation.disks.inodes import Directory, FileNode, Inode

if TYPE_CHECKING:
    from riverrun.simulation.disks.disk import Disk
    from riverrun.simulation.loop import NodeLoop


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Mount:
    """Implements ``riverrun.ports.files.Files``."""

    def __init__(self, disk: Disk, process: NodeLoop) -> None:
        self._disk = disk
        self._process = process

    # Lookups

    def exists(self, path: str) -> bool:
        return self._look(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._look(path), Directory)

    def size(self, path: str) -> int:
        node = self._must_find(path)
        return len(node.content) if isinstance(node, Inode) else 0

    def modified_ms(self, path: str) -> int:
        return self._must_find(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        self._process.spend(self._disk.access_seconds() * 0.1)
        return sorted(self._directory(path).entries)

    def free_bytes(self, path: str) -> int:
        self._must_find(path)
        return self._disk.free_bytes()

    def total_bytes(self, path: str) -> int:
        self._must_find(path)
        return self._disk.capacity_bytes

    def identity(self, path: str) -> str:
        self._must_find(path)
        return path  # files are never copied in the simulation

    def _look(self, path: str) -> FileNode | None:
        self._disk.operation(self._process, f"look {path}")
        return self._disk.find(path)

    def _must_find(self, path: str) -> FileNode:
        node = self._look(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _directory(self, path: str) -> Directory:
        node = self._must_find(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[Directory, str]:
        """The parent directory of a path, and the last component."""
        parent, name = os.path.split(path)
        node = self._disk.find(parent)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node, name

    # Changes of names

    def open(self, path: str, *, create: bool = False) -> File:
        node = self._look(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = self._create(path)
        return MountedFile(self._disk, self._process, node, path)

    def _create(self, path: str) -> Inode:
        self._disk.operation(self._process, f"create {path}")
        directory, name = self._place(path)
        if self._disk.free_bytes() == 0:
            raise _error(errno.ENOSPC, path)
        inode = Inode(self._now_ms())
        inode.names = 1
        self._disk.names.change((directory, name, inode))
        return inode

    def make_directory(self, path: str) -> None:
        walked = ""
        for name in path.split("/"):
            if not name:
                continue
            walked = f"{walked}/{name}"
            node = self._disk.find(walked)
            if node is None:
                self._disk.operation(self._process, f"mkdir {walked}")
                if self._disk.free_bytes() == 0:
                    raise _error(errno.ENOSPC, walked)
                parent, _ = self._place(walked)
                made = Directory(self._now_ms())
                made.names = 1
                self._disk.names.change((parent, name, made))
            elif not isinstance(node, Directory):
                raise _error(errno.EEXIST, walked)

    def remove_directory(self, path: str) -> None:
        self._disk.operation(self._process, f"rmdir {path}")
        if self._directory(path).entries:
            raise _error(errno.ENOTEMPTY, path)
        parent, name = self._place(path)
        self._disk.names.change((parent, name, None))

    def rename(self, old: str, new: str) -> None:
        self._disk.operation(self._process, f"rename {old} {new}")
        self._process.spend(self._disk.access_seconds() * 0.1)
        node = self._must_find(old)
        replaced = self._disk.find(new)
        if replaced is node:
            return
        if isinstance(replaced, Directory):
            if not isinstance(node, Directory):
                raise _error(errno.EISDIR, new)
            if replaced.entries:
                raise _error(errno.ENOTEMPTY, new)
        source, target = self._place(old), self._place(new)
        self._disk.names.change((*source, None), (*target, node))
        if isinstance(replaced, Inode):
            self._unname(replaced)

    def unlink(self, path: str) -> None:
        self._disk.operation(self._process, f"unlink {path}")
        self._process.spend(self._disk.access_seconds())
        node = self._must_find(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        directory, name = self._place(path)
        self._disk.names.change((directory, name, None))
        self._unname(node)

    def _unname(self, inode: Inode) -> None:
        inode.names -= 1
        if inode.names == 0:
            self._disk.used_bytes -= len(inode.content)

    def sync_directory(self, path: str) -> None:
        self._disk.operation(self._process, f"sync {path}/")
        directory = self._directory(path)
        if self._disk.fails_to_sync():
            self._process.spend(self._disk.sync_seconds())
            raise _error(errno.EIO, path)
        seconds = self._disk.sync_seconds()
        is_early = self._disk.rng.random() < 0.5
        if is_early:
            self._disk.names.sync(directory)
        self._process.spend(seconds)
        if not is_early:
            self._disk.names.sync(directory)
        self._disk.operation(self._process, f"synced {path}/")

    def lock(self, path: str) -> Lock:
        node = self._look(path)
        if node is None:
            self._create(path)
        if path in self._disk.locks:
            raise BlockingIOError(errno.EAGAIN, "the lock is held by another process", path)
        self._disk.locks[path] = self._process
        return MountedLock(self._disk, self._process, path)

    def _now_ms(self) -> int:
        return int(self._disk.world.wall_seconds(self._disk.host) * 1000)


class MountedLock:
    def __init__(self, disk: Disk, process: NodeLoop, path: str) -> None:
        self._disk = disk
        self._process = process
        self._path = path

    def release(self) -> None:
        if self._disk.locks.get(self._path) is self._process:
            del self._disk.locks[self._path]


class MountedFile:
    """Implements ``riverrun.ports.files.File``."""

    __slots__ = ("_disk", "_inode", "_is_open", "_path", "_process")

    def __init__(self, disk: Disk, process: NodeLoop, inode: Inode, path: str) -> None:
        self._disk = disk
        self._process = process
        self._inode = inode
        self._path = path
        self._is_open = True

    def _operation(self, line: str) -> None:
        self._disk.operation(self._process, line)
        if not self._is_open:
            raise _error(errno.EBADF, self._path)

    def size(self) -> int:
        self._operation(f"size {self._path}")
        return len(self._inode.content)

    def read_at(self, position: int, length: int) -> bytes:
        self._operation(f"read {self._path} {position} {length}")
        if self._inode.is_cold(position, length):
            self._process.spend(self._disk.access_seconds())
            self._inode.warm(position, length)
        return bytes(memoryview(self._inode.content)[position : position + length])

    def read_cached_at(self, position: int, length: int) -> bytes | None:
        self._operation(f"peek {self._path} {position} {length}")
        if self._inode.is_cold(position, length):
            return None
        if self._disk.rng.random() < self._disk.cold_probability:
            return None
        return bytes(memoryview(self._inode.content)[position : position + length])

    def drop_cached(self, position: int, length: int) -> None:
        self._operation(f"drop {self._path} {position} {length}")
        self._inode.chill(position, length)

    def write_at(self, position: int, data: Buffer) -> None:
        content = bytes(data)
        self._operation(f"write {self._path} {position} {len(content)} {zlib.crc32(content)}")
        waits = self._disk.write_seconds()
        if waits:
            self._process.spend(waits)
        size = len(self._inode.content)
        growth = max(0, position + len(content) - size)
        has_failed = self._disk.fails_to_write()
        if growth <= self._disk.free_bytes() and not has_failed:
            self._write(position, content)
            return
        # Like the real port: write what fits, fail the rest, truncate to the old size.
        fitting = len(content) - (growth - self._disk.free_bytes())
        if has_failed:
            fitting = self._disk.rng.randrange(len(content) + 1)
        if fitting > 0:
            self._write(position, content[:fitting])
            self._operation(f"short write {self._path} {fitting}")
        if len(self._inode.content) > size:
            self._truncate(size)
        raise _error(errno.EIO if has_failed else errno.ENOSPC, self._path)

    def truncate(self, size: int) -> None:
        self._operation(f"truncate {self._path} {size}")
        growth = size - len(self._inode.content)
        if growth > self._disk.free_bytes():
            raise _error(errno.ENOSPC, self._path)
        self._truncate(size)

    def sync(self) -> None:
        """Sync earlier writes; they become durable at the start or only at the end."""
        self._operation(f"sync {self._path}")
        last = self._inode.last_change()
        seconds = self._disk.sync_seconds()
        if self._disk.fails_to_sync():
            self._process.spend(seconds)
            self._inode.fail_to_carry_over(last, self._disk.rng)
            raise _error(errno.EIO, self._path)
        is_early = self._disk.rng.random() < 0.5
        if is_early:
            self._inode.carry_over(last)
        self._process.spend(seconds)
        if not is_early:
            self._inode.carry_over(last)
        self._disk.operation(self._process, f"synced {self._path}")

    def close(self) -> None:
        if self._process.is_halted:
            return  # finalizers of a stopped process may close files
        if not self._is_open:
            raise _error(errno.EBADF, self._path)
        self._is_open = False

    def _write(self, position: int, data: bytes) -> None:
        before = len(self._inode.content)
        self._inode.write(position, data, self._now_ms())
        self._grow(before)

    def _truncate(self, size: int) -> None:
        before = len(self._inode.content)
        self._inode.truncate(size, self._now_ms())
        self._grow(before)

    def _grow(self, before: int) -> None:
        if self._inode.names > 0:
            self._disk.used_bytes += len(self._inode.content) - before

    def _now_ms(self) -> int:
        return int(self._disk.world.wall_seconds(self._disk.host) * 1000)
