"""Open files under a limit: ten thousand partitions do not fit into a process's descriptors.

A holder (a segment) keeps its open file in ``handle`` and sets ``is_recent`` on use; when the limit
is reached, one that was not used lately gives its file up. All of that happens on the event loop.
Threads that sync or read hold the file by ``acquire`` until they ``release`` it, so nothing is
closed under them; the last one to let go closes it.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Protocol

from riverrun.ports.files import File, Files

INDEXES_MAX = 64
"""Indexes of segments at rest that are kept in memory: some MB each for full segments."""


class Handle:
    """An open file and how many hold it."""

    __slots__ = ("_holders", "_lock", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._holders = 1
        self._lock = Lock()

    def acquire(self) -> Handle:
        with self._lock:
            assert self._holders > 0, "a closed file cannot be held"
            self._holders += 1
        return self

    def release(self) -> None:
        with self._lock:
            assert self._holders > 0, "a file was released twice"
            self._holders -= 1
            if self._holders:
                return
        self.file.close()


class HandleOwner(Protocol):
    """Whoever has an open file and can do without."""

    handle: Handle | None
    is_recent: bool

    def evict(self) -> None:
        """Give the file up until it is needed again."""
        ...

    def drop_index(self) -> None:
        """Give up an index that can be loaded again."""
        ...


class OpenFiles:
    """The open files of one directory."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self._limit = limit
        self._holders: deque[HandleOwner] = deque()
        self._indexes: deque[HandleOwner] = deque()

    def __len__(self) -> int:
        return len(self._holders)

    def open(self, holder: HandleOwner, path: str, *, create: bool = False) -> Handle:
        """Open a file for a holder that has none."""
        assert holder.handle is None, f"{path} is open"
        self._make_room()
        handle = Handle(self.files.open(path, create=create))
        holder.handle = handle
        holder.is_recent = True
        self._holders.append(holder)
        return handle

    def note_index(self, holder: HandleOwner) -> None:
        """Somebody has an index in memory that lies in a file as well; the oldest of many goes."""
        self._indexes.append(holder)
        if len(self._indexes) > INDEXES_MAX:
            self._indexes.popleft().drop_index()

    def close(self, holder: HandleOwner) -> None:
        """Give up a holder's file, if it has one."""
        handle = holder.handle
        if handle is not None:
            holder.handle = None
            handle.release()

    def _make_room(self) -> None:
        holders = self._holders
        for _ in range(2 * len(holders)):
            if len(holders) < self._limit:
                return
            holder = holders.popleft()
            if holder.handle is None:
                continue  # its segment was discarded or closed meanwhile
            if holder.is_recent:
                holder.is_recent = False
                holders.append(holder)
            else:
                holder.evict()
