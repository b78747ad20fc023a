"""Rebuilds the state of producers (and leader epochs) from a snapshot and the log behind it.

Reads headers only: the batches were checked before. Used by recovery, and by truncation where
memory does not reach back far enough.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence

import structlog

from riverrun.ports.files import File, Files, read_whole
from riverrun.records.batch import BatchHeader
from riverrun.storage.producers import BATCHES_KEPT, CorruptSnapshot, Producers
from riverrun.storage.reading import find_batch, load_index
from riverrun.storage.recovery.scan import Learned, headers
from riverrun.storage.segment import SNAPSHOT_SUFFIX, Segment, file_name

_EARLIER_BYTES = (1 << 17, 5 << 20)
"""How far before a snapshot to look for a producer's last five batches, at first and at most."""
_logger = structlog.get_logger("riverrun.storage")


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, file_name(offset, SNAPSHOT_SUFFIX))


def load_snapshot(
    files: Files, directory: str, offsets: Iterable[int], seen_ms: int
) -> tuple[Producers, int] | None:
    """The newest snapshot that can be read, and its offset."""
    for offset in sorted(offsets, reverse=True):
        path = snapshot_path(directory, offset)
        try:
            return Producers.from_snapshot(read_whole(files, path), seen_ms), offset
        except FileNotFoundError:
            continue
        except CorruptSnapshot as error:
            _logger.warning("producer snapshot ignored", path=path, reason=str(error))
    return None


def replay(
    files: Files, segments: Sequence[Segment], learned: Learned, *, start: int, end: int
) -> None:
    """Account for the batches in [start, end)."""
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end or segment.size == 0:
            continue
        with contextlib.closing(files.open(segment.path)) as file:
            position: int | None = 0
            if start > segment.base_offset:
                index = segment.index or load_index(files, file.read_at, segment.view())
                known = index.position_before(start) if index is not None else 0
                position = find_batch(file.read_at, known, segment.size, start)
                assert position is not None
            for _, header, batch in headers(file, position or 0, segment.size):
                if header.base_offset >= end:
                    return
                learned.note(header, batch)


def recall_earlier(
    files: Files, segments: Sequence[Segment], producers: Producers, offset: int
) -> None:
    """Find the batches before a snapshot's offset that it had no room for.

    A snapshot holds each producer's last batch; a producer may retry any of its last five.
    """
    for segment in segments:
        if not segment.base_offset < offset <= segment.next_offset or segment.size == 0:
            continue
        with contextlib.closing(files.open(segment.path)) as file:
            index = segment.index or load_index(files, file.read_at, segment.view())
            known = index.position_before(offset) if index is not None else segment.size
            for window in _EARLIER_BYTES:
                start = index.position_at_most(max(known - window, 0)) if index else 0
                if _recall_from(file, start, segment.size, producers, offset) or start == 0:
                    return


def _recall_from(file: File, start: int, size: int, producers: Producers, offset: int) -> bool:
    """Recall what lies in a part of the log; whether it was enough for those who wrote there."""
    earlier: dict[int, list[BatchHeader]] = {}
    for _, header, _ in headers(file, start, size):
        if header.base_offset >= offset:
            break
        if header.producer_id in producers.known and not header.is_control:
            recent = earlier.setdefault(header.producer_id, [])
            recent.append(header)
            del recent[:-BATCHES_KEPT]
    for recent in earlier.values():
        for header in reversed(recent):
            producers.remember_earlier(header)
    return all(producers.known[producer_id].is_remembered for producer_id in earlier)
