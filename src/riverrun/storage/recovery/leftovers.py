"""Removes files that an interrupted deletion or compaction left in a partition's directory.

Compaction writes ``.cleaned`` files, renames them to ``.swap`` when all are complete, and only then
removes the old segments. So ``.cleaned`` files are dropped, and a ``.swap`` is completed.
"""

from __future__ import annotations

import contextlib
import os
import re

from riverrun.ports.files import Files
from riverrun.records.batch import CorruptBatch
from riverrun.storage.segment.scan import headers
from riverrun.storage.segment.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
)

_OFFSET_FILE = re.compile(r"(\d{20})(\.[a-z]+)(\.[a-z]+)?$")
_KNOWN = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
_TEMPORARY = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")


def remove_leftovers(files: Files, path: str) -> list[str]:
    """Complete or undo interrupted operations. Returns the names of the remaining files, sorted."""
    names = files.list_directory(path)
    if not any(name.endswith(_TEMPORARY) for name in names):
        return _without_orphans(files, path, names)
    parts = [(name, match) for name in names if (match := _OFFSET_FILE.match(name))]
    stale = [name for name, match in parts if match[3] in (DELETED_SUFFIX, CLEANED_SUFFIX)]
    stale += [name for name in names if name.endswith((".tmp", SWAP_SUFFIX + DELETED_SUFFIX))]
    cleaned = [int(match[1]) for _, match in parts if match[3] == CLEANED_SUFFIX]
    swaps = [(name, match) for name, match in parts if match[3] == SWAP_SUFFIX]
    # Files are renamed to .swap from the last offset to the first. If a .cleaned file is left, the
    # compaction was not complete from its offset on.
    stale += [name for name, match in swaps if cleaned and int(match[1]) >= min(cleaned)]
    for name in stale:
        files.unlink(os.path.join(path, name))
    whole = [(name, match) for name, match in swaps if name not in stale]
    if whole:
        _finish_swaps(files, path, whole, [int(m[1]) for _, m in parts if m[2] == LOG_SUFFIX])
    if stale or whole:
        files.sync_directory(path)
        names = files.list_directory(path)
    return _without_orphans(files, path, names)


def _finish_swaps(
    files: Files, path: str, swaps: list[tuple[str, re.Match[str]]], bases: list[int]
) -> None:
    """Remove the segments that a compacted one replaces, then rename it."""
    for name, match in swaps:
        if match[2] != LOG_SUFFIX:
            continue
        base = int(match[1])
        end = _next_offset(files, os.path.join(path, name), base)
        for old in bases:
            if base <= old < end:
                for suffix in SEGMENT_SUFFIXES:
                    replaced = os.path.join(path, f"{old:020d}{suffix}")
                    if files.exists(replaced):
                        files.unlink(replaced)
    files.sync_directory(path)
    for name, _ in swaps:
        old_path = os.path.join(path, name)
        files.rename(old_path, old_path.removesuffix(SWAP_SUFFIX))


def _next_offset(files: Files, path: str, base: int) -> int:
    next_offset = base + 1
    with contextlib.closing(files.open(path)) as file, contextlib.suppress(CorruptBatch):
        for _, header, _ in headers(file, 0, file.size()):
            next_offset = header.next_offset
    return next_offset


def _without_orphans(files: Files, path: str, names: list[str]) -> list[str]:
    """Remove indexes without a log file, which would be used for a new segment of that name."""
    kept = [name for name in names if name.endswith(_KNOWN) and name[:20].isdigit()]
    logs = {name[:20] for name in kept if name.endswith(LOG_SUFFIX)}
    orphans = [
        name for name in kept if name[:20] not in logs and not name.endswith(SNAPSHOT_SUFFIX)
    ]
    for name in orphans:
        files.unlink(os.path.join(path, name))
        kept.remove(name)
    return kept
