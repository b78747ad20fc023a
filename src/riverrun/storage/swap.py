"""Putting a compacted segment into the place of those that it replaces, whatever happens meanwhile.

Four steps, of which the first and third wait for the disk and belong in a thread:

    .cleaned -> .swap, durable | old segments -> .deleted | durable | .swap -> final name

From the first step on a restart finishes the rest (``leftovers``); before it nothing has happened.
Between the second and the fourth the log reads the new segment under its ``.swap`` name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from riverrun.ports.files import Files
from riverrun.storage.segment import (
    CLEANED_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    Segment,
    file_name,
)
from riverrun.storage.upkeep import Upkeep


class Replacement(Protocol):
    """A compacted segment; its files end in ``.cleaned`` and are synced."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def replaced(self) -> Sequence[int]:
        """Base offsets of the segments that it replaces; the first is its own."""
        ...

    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def first_timestamp(self) -> int | None: ...
    @property
    def has_transactions(self) -> bool: ...


def complete(files: Files, directory: str, base_offset: int) -> None:
    """Declare a compacted segment complete. Waits for the disk."""
    for suffix in SEGMENT_SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, suffix))
        if files.exists(path + CLEANED_SUFFIX):
            files.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    files.sync_directory(directory)


def abandon(files: Files, directory: str, base_offset: int) -> None:
    """Remove a compacted segment that is not wanted any more. Waits for the disk."""
    for suffix in SEGMENT_SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, suffix))
        for ending in (CLEANED_SUFFIX, SWAP_SUFFIX):
            if files.exists(path + ending):
                files.unlink(path + ending)


def can_enter(log: Upkeep, replacement: Replacement) -> bool:
    """Whether the log still has the segments that were compacted."""
    return log.find_run(replacement.replaced) is not None


def enter(log: Upkeep, replacement: Replacement) -> tuple[Segment, list[Segment]]:
    """Let the log use the new segment; also the old ones, whose files may go."""
    first = log.find_run(replacement.replaced)
    assert first is not None, f"{log.partition} no longer has {replacement.replaced}"
    segment = log.new_segment(replacement.base_offset)
    segment.alias = SWAP_SUFFIX
    segment.size = segment.synced_size = segment.checked_from = replacement.size
    segment.max_timestamp = replacement.max_timestamp
    segment.max_timestamp_offset = replacement.max_timestamp_offset
    segment.first_timestamp = replacement.first_timestamp
    segment.has_own_transactions = replacement.has_transactions
    return segment, log.replace(first, len(replacement.replaced), segment)


def finish(files: Files, log: Upkeep, segment: Segment) -> None:
    """Give the new segment its name, unless the log has dropped it meanwhile."""
    if segment not in log.segments:
        return
    for suffix in SEGMENT_SUFFIXES:
        path = segment.path_of(suffix)
        if files.exists(path):
            files.rename(path, path.removesuffix(SWAP_SUFFIX))
    segment.alias = ""
