"""Replaces segments of a log by a compacted one. A crash at any moment is recovered correctly.

There are four steps. Those in a thread may wait for the disk. Those on the event loop change the
log and the names of its files together:

    thread  complete   .cleaned -> .swap, durable: from now on a restart completes the rest
    loop    enter      the log reads the new segment as .swap, the old ones become .deleted
    thread  settle     sync the renames
    loop    finish     .swap -> the final name

So a restart finds either all old segments, or the new one with or without some of the old ones.
``recovery.leftovers`` handles both cases.

A truncation waits for the end of the steps. Otherwise a restart could complete the swap of segments
that were truncated, and replace new records by old ones.
"""

from __future__ import annotations

import os

from riverrun.ports.files import Files
from riverrun.storage.cleaning.compaction import CompactionResult
from riverrun.storage.log import Log
from riverrun.storage.segment.segment import (
    CLEANED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    Segment,
    file_name,
)


class Swap:
    """One new segment replaces one or more old ones."""

    def __init__(self, files: Files, log: Log, cleaned: CompactionResult) -> None:
        self._files = files
        self._log = log
        self._directory = log.path
        self._cleaned = cleaned
        self._new: Segment | None = None

    def complete(self) -> None:
        """Mark the new files as complete. Waits for the disk."""
        for path in self._paths():
            if self._files.exists(path + CLEANED_SUFFIX):
                self._files.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        self._files.sync_directory(self._directory)

    def abandon(self) -> None:
        """Remove the new files. Waits for the disk."""
        for path in self._paths():
            for ending in (CLEANED_SUFFIX, SWAP_SUFFIX):
                if self._files.exists(path + ending):
                    self._files.unlink(path + ending)

    def can_enter(self) -> bool:
        """Whether the log still has the compacted segments."""
        return self._find() is not None

    def _find(self) -> int | None:
        """None in a deleted log: its path may belong to a new log of the same name. None after a
        truncation: new segments may have the same base offsets."""
        segments = self._log.segments
        if self._log.is_offline or segments.compacting_to is None:
            return None
        return segments.find_run(self._cleaned.replaced)

    def enter(self) -> list[Segment]:
        """Put the new segment into the log. Returns the old ones, whose files may be removed."""
        cleaned = self._cleaned
        first = self._find()
        assert first is not None, f"{self._log.partition} no longer has {cleaned.replaced}"
        new = self._log.segments.new(cleaned.base_offset)
        new.alias = SWAP_SUFFIX
        new.size = new.synced_size = new.checked_from = cleaned.size
        new.max_timestamp = cleaned.max_timestamp
        new.max_timestamp_offset = cleaned.max_timestamp_offset
        new.first_timestamp = cleaned.first_timestamp
        new.has_own_transactions = cleaned.has_transactions
        self._new = new
        return self._log.segments.replace(first, len(cleaned.replaced), new)

    def settle(self) -> None:
        """Make the renames durable. Waits for the disk."""
        self._files.sync_directory(self._directory)

    def finish(self) -> None:
        """Give the new files their final names, unless the log dropped the segment meanwhile."""
        new = self._new
        assert new is not None, "enter must be called before finish"
        if new not in self._log.segments or self._log.is_offline:
            return
        for path in self._paths():
            if self._files.exists(path + SWAP_SUFFIX):
                self._files.rename(path + SWAP_SUFFIX, path)
        new.alias = ""
        self._log.segments.invalidate()

    def _paths(self) -> list[str]:
        base = self._cleaned.base_offset
        return [
            os.path.join(self._directory, file_name(base, suffix)) for suffix in SEGMENT_SUFFIXES
        ]
