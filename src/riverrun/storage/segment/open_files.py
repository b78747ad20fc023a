"""Open files under a limit, because 10,000 partitions exceed the descriptors of a process.

An owner (a segment) keeps its open file in ``handle`` and sets ``is_recent`` when it uses it. At
the limit, an owner that was not recent gives up its file. This happens on the event loop. Threads
that sync or read call ``acquire``, and ``release`` when they are done. The last release closes the
file.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Protocol

from riverrun.ports.files import File, Files

INDEXES_MAX = 64
"""Indexes of closed segments that are kept in memory: some MB each for full segments."""


class Handle:
    """A reference-counted open file."""

    __slots__ = ("_lock", "_references", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._references = 1
        self._lock = Lock()

    def acquire(self) -> Handle:
        with self._lock:
            assert self._references > 0, "a closed file cannot be acquired"
            self._references += 1
        return self

    def release(self) -> None:
        with self._lock:
            assert self._references > 0, "a file was released twice"
            self._references -= 1
            if self._references:
                return
        self.file.close()


class HandleOwner(Protocol):
    """Has an open file and can give it up."""

    handle: Handle | None
    is_recent: bool

    def evict(self) -> None:
        """Close the file until it is needed again."""
        ...

    def drop_index(self) -> None:
        """Drop an index that can be loaded again."""
        ...


class OpenFiles:
    """The open files of one directory."""

    def __init__(self, files: Files, limit: int) -> None:
        self.files = files
        self._limit = limit
        self._owners: deque[HandleOwner] = deque()
        self._indexes: deque[HandleOwner] = deque()

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, owner: HandleOwner, path: str, *, create: bool = False) -> Handle:
        """Open a file for an owner that has none."""
        assert owner.handle is None, f"{path} is open"
        self._evict_some()
        handle = Handle(self.files.open(path, create=create))
        owner.handle = handle
        owner.is_recent = True
        self._owners.append(owner)
        return handle

    def note_index(self, owner: HandleOwner) -> None:
        """An owner keeps an index in memory that is also in a file. Drops the oldest at a limit."""
        self._indexes.append(owner)
        if len(self._indexes) > INDEXES_MAX:
            self._indexes.popleft().drop_index()

    def close(self, owner: HandleOwner) -> None:
        """Close the file of an owner, if it has one."""
        handle = owner.handle
        if handle is not None:
            owner.handle = None
            handle.release()

    def _evict_some(self) -> None:
        owners = self._owners
        for _ in range(2 * len(owners)):
            if len(owners) < self._limit:
                return
            owner = owners.popleft()
            if owner.handle is None:
                continue  # its segment was discarded or closed
            if owner.is_recent:
                owner.is_recent = False
                owners.append(owner)
            else:
                owner.evict()
