"""Making a log durable: the part that waits for the disk, as a job for a thread.

A job has values and open files of its own. A sync that fails is never tried again: what the kernel
did with the pages is not known, and the next sync would succeed without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from riverrun.ports.files import Files, write_atomically
from riverrun.storage.open_files import Handle
from riverrun.storage.segment import Segment


class FlushJob:
    """``run`` in a thread, then ``Log.flushed`` on the loop, or ``Log.flush_failed``."""

    def __init__(
        self,
        files: Files,
        *,
        offset: int,
        generation: int,
        segments: Sequence[tuple[Segment, int]],
        is_whole: bool,
    ) -> None:
        self._files = files
        self.offset = offset
        """Everything below it is durable when the job is done."""
        self.generation = generation
        self.segments = segments
        self.is_whole = is_whole
        """Whether indexes, epochs and producers go along, so that recovery may start here."""
        self.handles: list[Handle] = []
        self.index_paths: list[str] = []
        self.side_files: Mapping[str, bytes] = {}
        self.snapshots: list[int] = []
        self.has_epochs = False
        self.has_synced = False
        """Whether the batches are durable, though the files beside them may not be."""
        self.is_abandoned = False
        """Set when the log is deleted: another may have its name by now."""
        self.stale_paths: list[str] = []
        self.directories: list[str] = []

    def run(self) -> None:
        for handle in self.handles:
            handle.file.sync()
        for path in self.index_paths:
            # Truncation or retention may have been quicker; then there is nothing to sync.
            with (
                contextlib.suppress(FileNotFoundError),
                contextlib.closing(self._files.open(path)) as file,
            ):
                file.sync()
        for path in dict.fromkeys(self.directories):
            self._files.sync_directory(path)
        self.has_synced = True
        self._write_side_files()

    def _write_side_files(self) -> None:
        for path, data in self.side_files.items():
            if self.is_abandoned:
                return
            write_atomically(self._files, path, data)
        for path in self.stale_paths:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path)

    def release(self) -> None:
        for handle in self.handles:
            handle.release()
        self.handles = []


class Unflushed(Protocol):
    @property
    def unflushed_bytes(self) -> int: ...


Dirty = TypeVar("Dirty", bound=Unflushed)


def largest_unflushed(logs: Iterable[Dirty], bytes_max: int) -> list[Dirty]:
    """The logs to be synced so that all others together have no more than that unsynced."""
    by_size = sorted(((log.unflushed_bytes, log) for log in logs), key=lambda pair: -pair[0])
    total = sum(size for size, _ in by_size)
    chosen = []
    for size, log in by_size:
        if total <= bytes_max:
            break
        chosen.append(log)
        total -= size
    return chosen
