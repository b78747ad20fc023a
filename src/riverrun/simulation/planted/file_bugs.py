"""Planted bugs in the ``Files`` port of a node.

Each bug is a typical mistake in syncing or writing files. Tests prove that the simulation finds
every one of them.
"""

from __future__ import annotations

from enum import Enum

from riverrun.ports.files import Buffer, File, Files, Lock


class FileBug(Enum):
    SYNC_IS_SKIPPED = "a sync returns without syncing"
    DIRECTORY_SYNC_IS_SKIPPED = "directories are never synced"
    RENAME_IS_NOT_SYNCED = "the directory is not synced after a rename"
    FAILED_SYNC_IS_RETRIED = "a failed sync is retried, and success of the retry is trusted"
    FAILED_SYNC_IS_IGNORED = "the error of a failed sync is ignored"
    SHORT_WRITE_STAYS = "a partial write is not truncated after an error"
    WRITES_ARE_BUFFERED = "the last write stays in a process buffer until the next write"


class BuggyFiles:
    """Forwards all calls to the simulated files, except for one bug."""

    def __init__(self, files: Files, bug: FileBug) -> None:
        self._files = files
        self._bug = bug
        self._renamed_in: dict[str, None] = {}

    def open(self, path: str, *, create: bool = False) -> File:
        return BuggyFile(self._files.open(path, create=create), self._bug)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)
        self._renamed_in[new.rpartition("/")[0]] = None

    def sync_directory(self, path: str) -> None:
        if self._bug is FileBug.DIRECTORY_SYNC_IS_SKIPPED:
            return
        if self._bug is FileBug.RENAME_IS_NOT_SYNCED and path in self._renamed_in:
            del self._renamed_in[path]
            return
        self._files.sync_directory(path)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._files.is_directory(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def modified_ms(self, path: str) -> int:
        return self._files.modified_ms(path)

    def list_directory(self, path: str) -> list[str]:
        return self._files.list_directory(path)

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self._files.remove_directory(path)

    def unlink(self, path: str) -> None:
        self._files.unlink(path)

    def free_bytes(self, path: str) -> int:
        return self._files.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._files.total_bytes(path)

    def identity(self, path: str) -> str:
        return self._files.identity(path)

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)


class BuggyFile:
    def __init__(self, file: File, bug: FileBug) -> None:
        self._file = file
        self._bug = bug
        self._waiting: tuple[int, bytes] | None = None

    def write_at(self, position: int, data: Buffer) -> None:
        match self._bug:
            case FileBug.WRITES_ARE_BUFFERED:
                self._flush()
                self._waiting = (position, bytes(data))
            case FileBug.SHORT_WRITE_STAYS:
                half = len(data) // 2
                self._file.write_at(position, data[:half])
                self._file.write_at(position + half, data[half:])
            case _:
                self._file.write_at(position, data)

    def sync(self) -> None:
        self._flush()
        match self._bug:
            case FileBug.SYNC_IS_SKIPPED:
                return
            case FileBug.FAILED_SYNC_IS_RETRIED | FileBug.FAILED_SYNC_IS_IGNORED:
                try:
                    self._file.sync()
                except OSError:
                    if self._bug is FileBug.FAILED_SYNC_IS_RETRIED:
                        self.sync()
            case _:
                self._file.sync()

    def size(self) -> int:
        size = self._file.size()
        if self._waiting is not None:
            size = max(size, self._waiting[0] + len(self._waiting[1]))
        return size

    def read_at(self, position: int, length: int) -> bytes:
        self._flush()
        return self._file.read_at(position, length)

    def read_cached_at(self, position: int, length: int) -> Buffer | None:
        self._flush()
        return self._file.read_cached_at(position, length)

    def drop_cached(self, position: int, length: int) -> None:
        self._file.drop_cached(position, length)

    def truncate(self, size: int) -> None:
        self._flush()
        self._file.truncate(size)

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._file.write_at(*waiting)
