"""Scrubbing: reads stored batches again, to find damage before a client reads it.

Every batch is checked as in recovery: format, order and CRC. The work runs in a worker process on a
real disk (see ``worker``). ``scrubber`` decides what to read and when. ``replication`` repairs
damage from other replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from riverrun.ports.files import File, Files
from riverrun.storage.segment.index import OFFSETS_SPAN_MAX
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.scan import OffsetRules, ReplayedState, scan
from riverrun.storage.segment.segment import Segment
from riverrun.storage.settings import LogSettings

if TYPE_CHECKING:
    from riverrun.storage.log import Log

_WITHOUT_INDEX = LogSettings(index_interval_bytes=1 << 30, segment_index_bytes=1 << 30)
"""The interval is larger than a segment, so that scanning collects no index entries."""

Throttle = Callable[[int], bool]
"""Called with the size of each read. May wait, and returns whether to continue."""


class SegmentExtent(Struct, frozen=True, kw_only=True):
    """A segment, up to its size when the task was created."""

    base_offset: int
    size: int
    next_offset: int
    bound: int | None
    """The base offset of the next segment, if there is one."""


class LogExtent(Struct, frozen=True, kw_only=True):
    """The segments of one log."""

    directory: str
    segments: tuple[SegmentExtent, ...]
    may_have_gaps: bool

    @property
    def size(self) -> int:
        return sum(part.size for part in self.segments)


class ScrubTask(Struct, frozen=True):
    """Several logs, because a process for each would be too expensive."""

    logs: tuple[LogExtent, ...]


class ScrubResult(Struct, frozen=True, kw_only=True):
    """The result for one segment."""

    place: int
    """The number of the log in the task."""
    size: int
    error: str | None = None
    offset: int = 0
    """The first corrupt offset."""


class ScrubAborted(Exception):
    """The throttle returned False."""


class ScrubJob(Protocol):
    """A running scrub. ``next`` waits, so call it in a thread; ``abort`` does not wait."""

    def next(self) -> ScrubResult | None:
        """The result for the next segment; None at the end."""
        ...

    def abort(self) -> None:
        """Make ``next`` end soon. Does nothing after the end."""
        ...


StartScrub = Callable[[ScrubTask, int], ScrubJob]
"""Starts a task, with a limit of bytes read per second."""


def extent_of(log: Log) -> LogExtent | None:
    """The current segments of a log; None while compaction renames its files."""
    segments: list[SegmentExtent] = []
    if any(segment.alias for segment in log.segments):
        return None
    for place, segment in enumerate(log.segments):
        following = log.segments[place + 1 : place + 2]
        if segment.size:
            segments.append(
                SegmentExtent(
                    base_offset=segment.base_offset,
                    size=segment.size,
                    next_offset=segment.next_offset,
                    bound=following[0].base_offset if following else None,
                )
            )
    return LogExtent(
        directory=log.path, segments=tuple(segments), may_have_gaps=log.settings.is_compacted
    )


def scrub(files: Files, task: ScrubTask, throttle: Throttle) -> Iterator[ScrubResult]:
    """Check all logs of a task, each up to its first damage. Raises ``ScrubAborted``."""
    open_files = OpenFiles(files, 1)
    for place, extent in enumerate(task.logs):
        for part in extent.segments:
            segment = Segment(open_files, extent.directory, part.base_offset)
            segment.activate(_WITHOUT_INDEX)
            try:
                error = _read(files, segment, part, throttle, may_have_gaps=extent.may_have_gaps)
            except OSError as failure:
                # An unreadable sector is damage, which other replicas can repair. If the whole disk
                # failed, appends report it.
                error = f"{segment.path} cannot be read: {failure.strerror or failure}"
            yield ScrubResult(
                place=place, size=segment.size, error=error, offset=segment.next_offset
            )
            if error is not None:
                break


def _read(
    files: Files, segment: Segment, part: SegmentExtent, throttle: Throttle, *, may_have_gaps: bool
) -> str | None:
    with contextlib.closing(files.open(segment.path)) as file:
        error = scan(
            _ThrottledFile(file, throttle),
            segment,
            ReplayedState.ignored(),
            start=0,
            size=part.size,
            rules=OffsetRules(bound=part.bound, may_have_gaps=may_have_gaps),
        )
    expected = part.next_offset
    if error is None and segment.next_offset != expected <= part.base_offset + OFFSETS_SPAN_MAX:
        error = f"offsets {segment.next_offset} to {expected} are missing"
    return error


class _ThrottledFile:
    """A file with throttled reads."""

    def __init__(self, file: File, throttle: Throttle) -> None:
        self._file = file
        self._throttle = throttle

    def read_at(self, position: int, length: int) -> bytes:
        if not self._throttle(length):
            raise ScrubAborted
        return self._file.read_at(position, length)
