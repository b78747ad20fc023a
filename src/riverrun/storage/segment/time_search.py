"""Finds offsets by timestamp. It waits for the disk, so it runs in a thread with its own files.

It works on a copy of the list of segments. Changes that happen meanwhile are not seen, or their
files are not found, as if the search had run a moment earlier or later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.ports.files import File, Files, read_whole
from riverrun.records.batch import BatchHeader
from riverrun.records.record import Record, read_records
from riverrun.storage.segment.index import TIME_ENTRY, TimeIndex
from riverrun.storage.segment.reader import SegmentView, find_batch, load_index
from riverrun.storage.segment.scan import headers


class OffsetAt(Struct, frozen=True):
    """The offset and timestamp of a record."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


class TimedView(Struct, kw_only=True):
    """The values of a segment that a search by timestamp needs."""

    view: SegmentView
    times_path: str
    times: TimeIndex | None
    max_timestamp: int
    max_timestamp_offset: int


def first_at_or_after(
    files: Files, segments: Sequence[TimedView], timestamp: int, *, start: int, end: int
) -> OffsetAt | None:
    """The first record in [start, end) that is not earlier than a timestamp."""
    for segment in segments:
        view = segment.view
        if segment.max_timestamp < timestamp or view.size == 0 or view.next_offset <= start:
            continue
        if view.base_offset >= end:
            return None
        with contextlib.suppress(FileNotFoundError):  # discarded by retention
            found = _search(files, segment, timestamp, start, end)
            if found is not None:
                return found
    return None


def latest(files: Files, segments: Sequence[TimedView], *, start: int, end: int) -> OffsetAt | None:
    """The first record in [start, end) with the largest timestamp."""
    best: tuple[int, int, TimedView] | None = None
    for segment in segments:
        view = segment.view
        if view.size == 0 or view.base_offset >= end or view.next_offset <= start:
            continue
        timestamp, offset = segment.max_timestamp, segment.max_timestamp_offset
        if not start <= offset < end or view.base_offset < start:
            with contextlib.suppress(FileNotFoundError):
                timestamp, offset = _max_between(files, segment, start, end)
        if timestamp >= 0 and (best is None or timestamp > best[0]):
            best = timestamp, offset, segment
    if best is None:
        return None
    timestamp, offset, segment = best
    with contextlib.closing(files.open(segment.view.path)) as file:
        for header, records in _batches_from(files, file, segment, offset):
            for record in records:
                if record.timestamp == timestamp and start <= record.offset < end:
                    return _at(record, header)
            if header.base_offset > offset:
                break
    return None


def _search(
    files: Files, segment: TimedView, timestamp: int, start: int, end: int
) -> OffsetAt | None:
    times = segment.times if segment.times is not None else _load_times(files, segment)
    from_offset = times.offset_before(timestamp) if times is not None else 0
    with contextlib.closing(files.open(segment.view.path)) as file:
        offset = max(from_offset, start)
        for header, records in _batches_from(files, file, segment, offset, timestamp):
            if header.base_offset >= end:
                return None
            for record in records:
                if record.timestamp >= timestamp and start <= record.offset < end:
                    return _at(record, header)
    return None


def _at(record: Record, header: BatchHeader) -> OffsetAt:
    return OffsetAt(Offset(record.offset), record.timestamp, LeaderEpoch(header.leader_epoch))


def _load_times(files: Files, segment: TimedView) -> TimeIndex | None:
    try:
        data = read_whole(files, segment.times_path)
    except FileNotFoundError:
        return None
    return TimeIndex.parse(
        segment.view.base_offset, data[: len(data) - len(data) % TIME_ENTRY.size]
    )


def _position_of(files: Files, file: File, view: SegmentView, offset: int) -> int:
    index = view.index if view.index is not None else load_index(files, file.read_at, view)
    start = index.position_before(offset) if index is not None else 0
    position = find_batch(file.read_at, start, view.size, offset)
    assert position is not None, "a reader that waits always returns data"
    return position


def _batches_from(
    files: Files, file: File, segment: TimedView, offset: int, timestamp: int = -1
) -> Iterator[tuple[BatchHeader, list[Record]]]:
    """Batches from an offset on that may hold a record that late, with their records.

    Transaction markers count as records, as in Kafka: a segment's largest timestamp includes them.
    """
    view = segment.view
    for position, header, _ in headers(file, _position_of(files, file, view, offset), view.size):
        if header.max_timestamp >= timestamp:
            yield header, read_records(file.read_at(position, header.size))


def _max_between(files: Files, segment: TimedView, start: int, end: int) -> tuple[int, int]:
    """The largest timestamp in a part of a segment, and the last offset of its first batch."""
    view = segment.view
    best = (-1, view.base_offset)
    with contextlib.closing(files.open(view.path)) as file:
        first = _position_of(files, file, view, start)
        for position, header, _ in headers(file, first, view.size):
            if header.base_offset >= end:
                break
            timestamp = header.max_timestamp
            if header.base_offset < start:
                # The timestamp in the header may belong to a record before the start.
                records = read_records(file.read_at(position, header.size))
                timestamp = max((r.timestamp for r in records if r.offset >= start), default=-1)
            if timestamp > best[0]:
                best = (timestamp, header.last_offset)
    return best
