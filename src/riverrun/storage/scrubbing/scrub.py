"""Scrubbing: reads what lies on the disk again, before somebody needs it and finds it rotten.

Every batch is judged as in recovery: shape, order and CRC. The reading is done by a job beside the
event loop, in a process of its own on a real disk (see ``worker``); what to read next, and when, is
decided by ``scrubbing/runner``; what to do about damage, by whoever has other copies.
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

GoOn = Callable[[int], bool]
"""Told how many bytes were read; says whether to read on, perhaps after a pause."""


class SegmentExtent(Struct, frozen=True, kw_only=True):
    """A segment, or the part of one that was written when the task was made."""

    base_offset: int
    size: int
    next_offset: int
    bound: int | None
    """Where the next segment begins, if there is one."""


class LogExtent(Struct, frozen=True, kw_only=True):
    """What there is of one log."""

    directory: str
    pieces: tuple[SegmentExtent, ...]
    may_have_gaps: bool

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


class ScrubTask(Struct, frozen=True):
    """Some logs, since a process is too dear for each."""

    logs: tuple[LogExtent, ...]


class ScrubResult(Struct, frozen=True, kw_only=True):
    """What was found in one piece."""

    place: int
    """Of the log in the task."""
    size: int
    problem: str | None = None
    offset: int = 0
    """Where it is not sound."""


class ScrubAborted(Exception):
    """Somebody wants to stop."""


class ScrubJob(Protocol):
    """``next`` waits, so it belongs in a thread; ``abort`` does not."""

    def next(self) -> ScrubResult | None:
        """What was found in the next piece; None when there are no more."""
        ...

    def abort(self) -> None:
        """Let ``next`` end soon. Does nothing once it has ended."""
        ...


StartScrub = Callable[[ScrubTask, int], ScrubJob]
"""Makes the job of a task that reads at most so many bytes a second."""


def extent_of(log: Log) -> LogExtent | None:
    """All that the log holds now; None while compaction gives its files other names."""
    pieces: list[SegmentExtent] = []
    if any(segment.alias for segment in log.segments):
        return None
    for place, segment in enumerate(log.segments):
        following = log.segments[place + 1 : place + 2]
        if segment.size:
            pieces.append(
                SegmentExtent(
                    base_offset=segment.base_offset,
                    size=segment.size,
                    next_offset=segment.next_offset,
                    bound=following[0].base_offset if following else None,
                )
            )
    return LogExtent(
        directory=log.path, pieces=tuple(pieces), may_have_gaps=log.settings.is_compacted
    )


def scrub(files: Files, task: ScrubTask, go_on: GoOn) -> Iterator[ScrubResult]:
    """Read all of it, of each log up to where it is not sound. Raises ``ScrubAborted``."""
    open_files = OpenFiles(files, 1)
    for place, extent in enumerate(task.logs):
        for piece in extent.pieces:
            segment = Segment(open_files, extent.directory, piece.base_offset)
            segment.activate(_WITHOUT_INDEX)
            try:
                problem = _read(files, segment, piece, go_on, may_have_gaps=extent.may_have_gaps)
            except OSError as error:
                # A sector that cannot be read is damage like any other: others have what it held.
                # If the whole disk is gone, whoever writes will meet it, too.
                problem = f"{segment.path} cannot be read: {error.strerror or error}"
            yield ScrubResult(
                place=place, size=segment.size, problem=problem, offset=segment.next_offset
            )
            if problem is not None:
                break


def _read(
    files: Files, segment: Segment, piece: SegmentExtent, go_on: GoOn, *, may_have_gaps: bool
) -> str | None:
    with contextlib.closing(files.open(segment.path)) as file:
        problem = scan(
            _Paced(file, go_on),
            segment,
            ReplayedState.ignored(),
            start=0,
            size=piece.size,
            rules=OffsetRules(bound=piece.bound, may_have_gaps=may_have_gaps),
        )
    expected = piece.next_offset
    if problem is None and segment.next_offset != expected <= piece.base_offset + OFFSETS_SPAN_MAX:
        problem = f"offsets {segment.next_offset} to {expected} are missing"
    return problem


class _Paced:
    """A file that is read no faster than allowed."""

    def __init__(self, file: File, go_on: GoOn) -> None:
        self._file = file
        self._go_on = go_on

    def read_at(self, position: int, length: int) -> bytes:
        if not self._go_on(length):
            raise ScrubAborted
        return self._file.read_at(position, length)
