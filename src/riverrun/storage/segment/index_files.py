"""Loads the index files of a segment, and rebuilds them where they do not match the log.

Runs in the threads of recovery, and on truncation.
"""

from __future__ import annotations

import contextlib
import struct

import structlog

from riverrun.ports.files import File, Files, read_whole, write_atomically
from riverrun.records.batch import (
    HEADER_BYTES,
    LENGTH_MIN,
    NO_TIMESTAMP,
    crc_matches,
    read_header,
)
from riverrun.storage.segment.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from riverrun.storage.segment.scan import ReplayedState, scan
from riverrun.storage.segment.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment
from riverrun.storage.settings import LogSettings

_logger = structlog.get_logger("riverrun.storage")


def load_max_timestamp(files: Files, segment: Segment, settings: LogSettings) -> str | None:
    """Load the largest timestamp of a closed segment, on which retention depends.

    Rebuilds the indexes if they are missing or do not match the end of the log. Returns the error
    if that finds damage.
    """
    if segment.size == 0:
        return None
    entry = _last_entry(files, segment.path_of(INDEX_SUFFIX), OFFSET_ENTRY, empty=(0, 0))
    time = _last_entry(
        files, segment.path_of(TIME_INDEX_SUFFIX), TIME_ENTRY, empty=(NO_TIMESTAMP, 0)
    )
    if entry is None or time is None or not _match_the_end(files, segment, settings, entry, time):
        return rebuild(files, segment, settings)
    segment.max_timestamp = time[0]
    segment.max_timestamp_offset = segment.base_offset + time[1]
    return None


def _last_entry(
    files: Files, path: str, entry: struct.Struct, *, empty: tuple[int, int]
) -> tuple[int, int] | None:
    """The last entry of an index file; ``empty`` if it has none, None if it is not valid."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        size = file.size()
        if size % entry.size:
            return None
        if size == 0:
            return empty
        first, second = entry.unpack(file.read_at(size - entry.size, entry.size))
        return first, second


def _match_the_end(
    files: Files,
    segment: Segment,
    settings: LogSettings,
    entry: tuple[int, int],
    time: tuple[int, int],
) -> bool:
    """Whether the last entries of both indexes belong to the last batches of the log.

    After the last entry, there are too few bytes for another entry, and no later timestamp.
    """
    relative, position = entry
    since = 0
    if time[1] >= segment.next_offset - segment.base_offset or position >= segment.size:
        return False
    with contextlib.closing(files.open(segment.path)) as file:
        while position < segment.size:
            data = file.read_at(position, HEADER_BYTES)
            if len(data) < HEADER_BYTES or since > settings.index_interval_bytes:
                return False
            header = read_header(data)
            if header.length < LENGTH_MIN or header.max_timestamp > time[0]:
                return False
            if since == 0 and relative and header.last_offset - segment.base_offset != relative:
                return False
            since += header.size
            position += header.size
    return True


def rebuild(files: Files, segment: Segment, settings: LogSettings) -> str | None:
    """Rebuild the indexes of a closed segment up to the first damage. Returns its description."""
    _logger.info("indexes rebuilt", segment=segment.path)
    size, next_offset = segment.size, segment.next_offset
    segment.reset()
    segment.activate(settings)
    with contextlib.closing(files.open(segment.path)) as file:
        problem = scan(file, segment, ReplayedState.ignored(), start=0, size=size)
    segment.checked_below = segment.size
    segment.size, segment.next_offset = size, next_offset
    rewrite_indexes(files, segment)
    segment.close_indexes(files)
    segment.index = None
    return problem


def rewrite_indexes(files: Files, segment: Segment) -> None:
    """Make the index files equal to the indexes in memory.

    The next start trusts them below the recovery point, so a power failure must not leave them half
    written. Entries that are missing at the end are appended; any other file is replaced.
    """
    assert segment.index is not None
    assert segment.times is not None
    for suffix, index in ((INDEX_SUFFIX, segment.index), (TIME_INDEX_SUFFIX, segment.times)):
        path = segment.path_of(suffix)
        content = bytes(index.encode())
        known = read_whole(files, path) if files.exists(path) else b""
        if not content.startswith(known):
            write_atomically(files, path, content)
        elif content != known or not files.exists(path):
            with contextlib.closing(files.open(path, create=True)) as file:
                file.write_at(len(known), content[len(known) :])
        index.pending = bytearray()


def load_indexed_part(
    files: Files, file: File, segment: Segment, settings: LogSettings, *, trusted_offset: int
) -> None:
    """Restore the state of a segment from its indexes, for batches below an offset.

    Afterwards the log must be scanned from ``size`` and ``next_offset`` on.
    """
    size = segment.size
    segment.reset()
    index = _parse(files, segment, INDEX_SUFFIX, OFFSET_ENTRY.size, OffsetIndex)
    times = _parse(files, segment, TIME_INDEX_SUFFIX, TIME_ENTRY.size, TimeIndex)
    if index is not None and times is not None:
        assert isinstance(index, OffsetIndex)
        assert isinstance(times, TimeIndex)
        resume = _resume_at(file, index, size, trusted_offset)
        if resume is not None:
            position, offset = resume
            index.truncate(position + 1)
            times.truncate(offset)
            segment.index, segment.times = index, times
            segment.size, segment.next_offset = position, offset
            if times.last is not None:
                segment.max_timestamp, segment.max_timestamp_offset = times.last
    segment.activate(settings)
    if segment.size > 0:
        segment.first_timestamp = read_header(file.read_at(0, HEADER_BYTES)).max_timestamp


def _parse(
    files: Files,
    segment: Segment,
    suffix: str,
    entry_bytes: int,
    kind: type[OffsetIndex] | type[TimeIndex],
) -> OffsetIndex | TimeIndex | None:
    try:
        data = read_whole(files, segment.path_of(suffix))
    except FileNotFoundError:
        return None
    return kind.parse(segment.base_offset, data[: len(data) - len(data) % entry_bytes])


def _resume_at(
    file: File, index: OffsetIndex, size: int, trusted_offset: int
) -> tuple[int, int] | None:
    """Position and offset of the last indexed batch below an offset, if its CRC is right.

    None when the log must be scanned from its start.
    """
    position = index.position_before(trusted_offset - 1)
    if position == 0 or position + HEADER_BYTES > size:
        return None
    header = read_header(file.read_at(position, HEADER_BYTES))
    if not index.has(header.last_offset, position) or position + header.size > size:
        return None
    batch = file.read_at(position, header.size)
    if len(batch) < header.size or not crc_matches(batch, 0, header.size):
        return None
    return position, header.base_offset
