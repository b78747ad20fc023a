"""Producer snapshots: the files of one log, and rebuilding producer state from them and the log.

Rebuilding reads batch headers only, because the batches were checked before. Recovery uses it, and
truncation when the batches that are kept in memory do not reach back far enough.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from riverrun.ports.files import File, Files, read_whole
from riverrun.records.batch import BatchHeader
from riverrun.storage.leader_epochs import LeaderEpochs
from riverrun.storage.producers import BATCHES_KEPT, CorruptSnapshot, Producers
from riverrun.storage.segment.reader import find_batch, load_index
from riverrun.storage.segment.scan import ReplayedState, headers
from riverrun.storage.segment.segment import SNAPSHOT_SUFFIX, Segment, file_name
from riverrun.storage.segment.segments import Segments

if TYPE_CHECKING:
    from riverrun.storage.log import Log

_EARLIER_BYTES = (1 << 17, 5 << 20)
"""Bytes before a snapshot to search for the last five batches of producers, first and at most."""
_SNAPSHOTS_KEPT = 2
_logger = structlog.get_logger("riverrun.storage")


class ProducerSnapshots:
    """The producer snapshots of one log, in files and due to be written by the next whole flush."""

    def __init__(self, files: Files, directory: str, offsets: Iterable[int]) -> None:
        self._files = files
        self._directory = directory
        self._stored = dict.fromkeys(offsets)
        self._due: dict[int, bytes] = {}

    def add(self, offset: int, producers: Producers) -> None:
        """Take a snapshot, which the next whole flush writes."""
        self._due[offset] = producers.snapshot()

    def take_due(
        self, end_offset: int, producers: Producers, segments: Segments
    ) -> tuple[dict[str, bytes], list[int]]:
        """Contents by path of the snapshots to write, one at the end offset included; offsets."""
        due = dict(self._due)
        if end_offset not in self._stored and end_offset > segments.base_offset:
            due[end_offset] = producers.snapshot()
        contents = {snapshot_path(self._directory, offset): data for offset, data in due.items()}
        return contents, list(due)

    def take_stale(self, segments: Segments) -> list[str]:
        """Paths of snapshots that are not needed any more.

        Truncation needs those at the start of a segment. Only the newest of the others are kept.
        """
        between = [offset for offset in self._stored if not segments.starts_at(offset)]
        stale = sorted(between)[:-_SNAPSHOTS_KEPT]
        stale += [offset for offset in self._stored if offset < segments.base_offset]
        stale = list(dict.fromkeys(stale))
        for offset in stale:
            del self._stored[offset]
        return [snapshot_path(self._directory, offset) for offset in stale]

    def stored(self, offsets: Iterable[int]) -> None:
        """Account for snapshots that were written."""
        for offset in offsets:
            self._due.pop(offset, None)
            self._stored[offset] = None

    def truncate(self, end_offset: int) -> None:
        """Remove snapshots above the end of a log that was truncated."""
        for offset in [offset for offset in self._stored if offset > end_offset]:
            del self._stored[offset]
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(snapshot_path(self._directory, offset))
        self._due = {offset: data for offset, data in self._due.items() if offset <= end_offset}

    def clear(self) -> None:
        self.truncate(-1)

    def rebuild(self, segments: Segments, end_offset: int, seen_ms: int) -> Producers:
        """Producer state at the end offset, from the newest snapshot and the log."""
        return self._rebuild(segments, end_offset, seen_ms, below=end_offset)

    def restore_ending(self, log: Log) -> None:
        """Find the transactions of a log that ended above its high watermark.

        A snapshot does not contain them, so it must be one from below the high watermark.
        """
        if log.producers.has_markers and log.high_watermark < log.end_offset:
            earlier = self._rebuild(log.segments, log.end_offset, 0, below=log.high_watermark)
            log.producers.adopt_ending(earlier)
        log.producers.settle(log.high_watermark)

    def _rebuild(
        self, segments: Segments, end_offset: int, seen_ms: int, *, below: int
    ) -> Producers:
        stored = [offset for offset in self._stored if offset <= below]
        found = load_snapshot(self._files, self._directory, stored, seen_ms)
        for offset in sorted(self._due, reverse=True):
            if offset <= below and (found is None or offset > found[1]):
                found = Producers.from_snapshot(self._due[offset], seen_ms), offset
        producers, start = found if found is not None else (Producers(), segments.base_offset)
        state = ReplayedState(producers, LeaderEpochs(), replay_from=start, seen_ms=seen_ms)
        replay(self._files, segments, state, start=start, end=end_offset)
        load_earlier_batches(self._files, segments, producers, start)
        return producers


def snapshot_path(directory: str, offset: int) -> str:
    return os.path.join(directory, file_name(offset, SNAPSHOT_SUFFIX))


def load_snapshot(
    files: Files, directory: str, offsets: Iterable[int], seen_ms: int
) -> tuple[Producers, int] | None:
    """The newest readable snapshot, and its offset."""
    for offset in sorted(offsets, reverse=True):
        path = snapshot_path(directory, offset)
        try:
            return Producers.from_snapshot(read_whole(files, path), seen_ms), offset
        except FileNotFoundError:
            continue
        except CorruptSnapshot as error:
            _logger.warning("producer snapshot ignored", path=path, error=str(error))
    return None


def replay(
    files: Files, segments: Sequence[Segment], state: ReplayedState, *, start: int, end: int
) -> None:
    """Replay the headers of the batches in [start, end)."""
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
                state.replay(header, batch)


def load_earlier_batches(
    files: Files, segments: Sequence[Segment], producers: Producers, offset: int
) -> None:
    """Load the batches before a snapshot that a snapshot does not contain.

    It contains the last batch of each producer, but a producer may retry any of its last five.
    """
    for segment in segments:
        if not segment.base_offset < offset <= segment.next_offset or segment.size == 0:
            continue
        with contextlib.closing(files.open(segment.path)) as file:
            index = segment.index or load_index(files, file.read_at, segment.view())
            known = index.position_before(offset) if index is not None else segment.size
            for window in _EARLIER_BYTES:
                start = index.position_at_most(max(known - window, 0)) if index else 0
                if _search_earlier(file, start, segment.size, producers, offset) or start == 0:
                    return


def _search_earlier(file: File, start: int, size: int, producers: Producers, offset: int) -> bool:
    """Search a part of the log. Returns whether all producers found there are complete."""
    earlier: dict[int, list[BatchHeader]] = {}
    for _, header, _ in headers(file, start, size):
        if header.base_offset >= offset:
            break
        if header.producer_id in producers.entries and not header.is_control:
            recent = earlier.setdefault(header.producer_id, [])
            recent.append(header)
            del recent[:-BATCHES_KEPT]
    for recent in earlier.values():
        for header in reversed(recent):
            producers.add_earlier(header)
    return all(producers.entries[producer_id].is_complete for producer_id in earlier)
