"""The task of a digest, its results, and how the batches of its range are read.

Every batch is read and its CRC is checked. A copy that is checked reads its files from the disk and
not from the page cache, as far as the kernel allows it (``is_read_back``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c
from msgspec import Struct

from riverrun.ports.files import File, Files
from riverrun.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
)
from riverrun.storage.scrubbing.scrub import SegmentExtent
from riverrun.storage.segment.index import AbortedTransaction
from riverrun.storage.segment.segment import LOG_SUFFIX, file_name

DIGEST_BYTES: Final = 16
CHUNK_BYTES: Final = 1 << 18

Throttle = Callable[[int], bool]
"""Called with the size of each read. May wait, and returns whether to continue."""


class SegmentPlace(Struct, frozen=True, kw_only=True):
    """Where the batches from an offset on begin."""

    base_offset: int
    """Of the segment."""
    position: int


class DigestTask(Struct, frozen=True, kw_only=True):
    """Digest the batches whose last offset is in [start, end)."""

    directory: str
    segments: tuple[SegmentExtent, ...]
    start: int
    end: int
    bounds: tuple[int, ...] = ()
    """The ends of the buckets; without them, a bucket ends after some megabytes."""
    bytes_max: int = 0
    """Without bounds: stop after the bucket that reaches this size; 0 for no limit."""
    place: SegmentPlace | None = None
    """Where the batches of ``start`` begin, if known."""
    is_read_back: bool = False
    is_by_key: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    """By key: the aborted transactions that ended below ``end``."""

    @property
    def size_bytes(self) -> int:
        """At most so many bytes are read once."""
        return sum(part.size for part in self.segments)


class DigestBucket(Struct, frozen=True, kw_only=True):
    start: int
    end: int
    digest: bytes
    size: int
    damage: str | None = None
    """Set if a batch is corrupt. The bucket is the last one then, and ``end`` is the first corrupt
    offset."""
    place: SegmentPlace | None = None
    """Where the next bucket begins."""


class DigestAborted(Exception):
    """The throttle returned False."""


def batches_of(
    files: Files, task: DigestTask, throttle: Throttle
) -> Iterator[tuple[int, int, BatchHeader, memoryview]]:
    """The base offset of the segment, position, header and bytes of each batch in the range, and
    of the batch that follows. Raises ``CorruptBatch`` for a wrong CRC.
    """
    for part in task.segments:
        if part.next_offset <= task.start:
            continue
        if part.base_offset >= task.end:
            return
        place, position = task.place, 0
        if place is not None and place.base_offset == part.base_offset:
            position = min(place.position, part.size)
        path = os.path.join(task.directory, file_name(part.base_offset, LOG_SUFFIX))
        with contextlib.closing(files.open(path)) as file:
            if task.is_read_back:
                file.drop_cached(position, part.size - position)
            for at, header, view in _read(file, path, position, part.size, task.start, throttle):
                yield part.base_offset, at, header, view
                if header.last_offset >= task.end:
                    return


def _read(
    file: File, path: str, position: int, size: int, start: int, throttle: Throttle
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """The batches of a file from a position on, without those that end below ``start``."""
    while position < size:
        data = _chunk(file, path, position, min(CHUNK_BYTES, size - position), throttle)
        if len(data) < HEADER_BYTES:
            raise CorruptBatch(f"{path} ends within the batch at {position}")
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = BatchHeader(*HEADER.unpack_from(data, at))
            end = at + header.length + OVERHEAD_BYTES
            if header.length < LENGTH_MIN or header.magic != MAGIC or position + end > size:
                raise CorruptBatch(f"there is no batch at {position + at} of {path}")
            if header.last_offset < start:
                at = end
                continue
            if end > len(data):
                if at:
                    break  # Read again from this batch on.
                data = _chunk(file, path, position, end, throttle)
                if len(data) < end:
                    raise CorruptBatch(f"{path} ends within the batch at {position}")
            view = memoryview(data)[at:end]
            if crc32c(view[CRC_START:]) != header.crc:
                raise CorruptBatch(f"the batch at {position + at} of {path} does not match its CRC")
            yield position + at, header, view
            at = end
        position += at


def _chunk(file: File, path: str, position: int, length: int, throttle: Throttle) -> bytes:
    if not throttle(length):
        raise DigestAborted(path)
    return file.read_at(position, length)
