"""Recovers the log of a partition from its directory, after a crash or a clean stop.

After a clean stop, only the last few batches are checked. Otherwise every batch behind the recovery
point is checked, and the log is cut at the first corrupt batch. Everything below the recovery point
was synced, so damage there is a loss of durable data: the sound prefix is kept, the rest is copied
to ``.damaged`` files, and the loss is reported. Runs in a thread and shares nothing with the event
loop.
"""

from __future__ import annotations

import contextlib
import itertools
import os

import structlog
from msgspec import Struct

from riverrun.ports.files import File, Files, read_whole
from riverrun.storage.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, CorruptCheckpoint
from riverrun.storage.leader_epochs import LeaderEpochs
from riverrun.storage.producer_snapshots import (
    load_earlier_batches,
    load_snapshot,
    replay,
    snapshot_path,
)
from riverrun.storage.producers import Producers
from riverrun.storage.recovery.leftovers import remove_leftovers
from riverrun.storage.recovery.loss import read_loss, write_loss
from riverrun.storage.recovery.transaction_indexes import restore_transaction_indexes
from riverrun.storage.segment.index import (
    OFFSETS_SPAN_MAX,
    TRANSACTION_ENTRY,
    AbortedTransaction,
    durable_transactions,
)
from riverrun.storage.segment.index_files import (
    load_indexed_part,
    load_max_timestamp,
    rewrite_indexes,
)
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.scan import OffsetRules, ReplayedState, scan
from riverrun.storage.segment.segment import (
    FIRST_LOG,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
)
from riverrun.storage.settings import LogSettings

DAMAGED_SUFFIX = ".damaged"
_COPY_BYTES = 4 << 20
_OFFSET_MAX = 2**63 - 1
_EMPTY_LOG_NAMES = (
    FIRST_LOG,
    file_name(0, INDEX_SUFFIX),
    file_name(0, TIME_INDEX_SUFFIX),
    PARTITION_METADATA,
)
_logger = structlog.get_logger("riverrun.storage")


class RecoverySituation(Struct, kw_only=True):
    """The input of recovery, besides the files of the log."""

    path: str
    settings: LogSettings
    start_offset: int
    recovery_point: int
    was_clean: bool
    now_ms: int
    has_disk_failed: bool = False
    """Whether the disk failed under the last process: see ``_Recovery._write_again``."""
    is_replica: bool = True
    """Whether other nodes have copies, so that a loss must be reported. False in the quorum."""


class RecoveredLog(Struct, kw_only=True):
    """The state of a log after recovery."""

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs
    start_offset: int
    recovery_point: int
    snapshots: list[int]
    cut_bytes: int = 0
    damage: str | None = None
    """The error text when synced data was lost."""
    damaged_at: int | None = None
    """The first corrupt offset; None when the corrupt part was removed."""
    is_durable: bool = False
    """Whether the directory is known to be synced."""


def recover(files: Files, open_files: OpenFiles, situation: RecoverySituation) -> RecoveredLog:
    """Recover the log of one partition from its files."""
    return (
        _recover_empty(files, open_files, situation)
        or _Recovery(files, open_files, situation).run()
    )


def create(open_files: OpenFiles, situation: RecoverySituation) -> RecoveredLog:
    """The state of a new log, whose first segment is an empty file. It is opened when needed."""
    segment = Segment(open_files, situation.path, 0)
    segment.created_ms = situation.now_ms
    segment.is_warm = True
    return _empty(segment)


def _empty(segment: Segment, *, is_durable: bool = False) -> RecoveredLog:
    return RecoveredLog(
        segments=[segment],
        producers=Producers(),
        epochs=LeaderEpochs(),
        start_offset=0,
        recovery_point=0,
        snapshots=[],
        is_durable=is_durable,
    )


def _recover_empty(
    files: Files, open_files: OpenFiles, situation: RecoverySituation
) -> RecoveredLog | None:
    """The fast path for a log to which nothing was ever appended; None for other logs.

    A node may have ten thousand of them, and a full recovery of all would take seconds.
    """
    path = situation.path
    if situation.start_offset or situation.recovery_point or situation.has_disk_failed:
        return None
    names = files.list_directory(path)
    if FIRST_LOG not in names or any(name not in _EMPTY_LOG_NAMES for name in names):
        return None
    if any(files.size(os.path.join(path, n)) for n in names if n != PARTITION_METADATA):
        return None
    segment = Segment(open_files, path, 0)
    segment.created_ms = situation.now_ms
    segment.is_warm = True
    return _empty(segment, is_durable=situation.was_clean)


class _Recovery:
    def __init__(self, files: Files, open_files: OpenFiles, situation: RecoverySituation) -> None:
        self._files = files
        self._open_files = open_files
        self._situation = situation
        self._path = situation.path
        self._cut_bytes = 0
        self._damage: str | None = None
        self._damaged_at: int | None = None

    def run(self) -> RecoveredLog:
        situation = self._situation
        names = remove_leftovers(self._files, self._path)
        segments = self._find_segments(names)
        sizes = [segment.size for segment in segments]
        first = self._first_to_check(segments)
        for segment in segments[:first]:
            error = load_max_timestamp(self._files, segment, situation.settings)
            if error is not None:
                self._report(segment, error)
                known, base = self._damaged_at, segment.base_offset
                self._damaged_at = base if known is None else min(known, base)
        with contextlib.closing(self._files.open(segments[first].path)) as file:
            trusted = _OFFSET_MAX if situation.was_clean else situation.recovery_point
            load_indexed_part(
                self._files, file, segments[first], situation.settings, trusted_offset=trusted
            )
        for segment in segments[first + 1 :]:
            segment.reset()
            segment.activate(situation.settings)
        snapshots = [int(name[:20]) for name in names if name.endswith(SNAPSHOT_SUFFIX)]
        resume = segments[first].next_offset
        state = self._start_state(segments[: first + 1], snapshots, resume)
        self._check(segments, sizes, first, state)
        if segments[-1].next_offset < situation.start_offset:
            segments, state = self._start_over(segments, snapshots)
        state = self._finish_state(segments, snapshots, state)
        restore_transaction_indexes(self._files, self._path, segments, snapshots, state.producers)
        end = segments[-1].next_offset
        start = max(situation.start_offset, segments[0].base_offset)
        was_clean = situation.was_clean and self._damage is None
        return RecoveredLog(
            segments=segments,
            producers=state.producers,
            epochs=state.epochs,
            start_offset=start,
            recovery_point=end if was_clean else min(max(situation.recovery_point, start), end),
            snapshots=snapshots,
            cut_bytes=self._cut_bytes,
            damage=self._damage
            or (read_loss(self._files, self._path) if situation.is_replica else None),
            damaged_at=self._damaged_at,
            is_durable=was_clean,
        )

    def _report(self, segment: Segment, error: str) -> None:
        self._damage = f"{os.path.basename(segment.path)}: {error}"
        _logger.error(
            "log damaged below its recovery point",
            partition=os.path.basename(self._path),
            segment=os.path.basename(segment.path),
            error=error,
        )

    def _note_loss(self) -> None:
        """Write the loss marker. To be called before the cut, after which the log looks sound."""
        assert self._damage is not None, "nothing was lost"
        if self._situation.is_replica:
            write_loss(self._files, self._path, self._damage)

    # Files

    def _find_segments(self, names: list[str]) -> list[Segment]:
        segments = []
        for name in names:
            if name.endswith(LOG_SUFFIX):
                segment = Segment(self._open_files, self._path, int(name[:20]))
                size = self._files.size(segment.path)
                segment.size = segment.checked_from = segment.synced_size = size
                transactions = file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
                segment.has_own_transactions = transactions in names
                segments.append(segment)
        for older, newer in itertools.pairwise(segments):
            older.next_offset = newer.base_offset
        if not segments:
            segments.append(self._new_segment(max(self._situation.start_offset, 0)))
        for segment in segments:
            segment.created_ms = self._situation.now_ms
        return segments

    def _new_segment(self, base: int) -> Segment:
        segment = Segment(self._open_files, self._path, base)
        self._files.open(segment.path, create=True).close()
        return segment

    def _first_to_check(self, segments: list[Segment]) -> int:
        """The place of the first segment to check: the one with the recovery point."""
        if self._situation.was_clean:
            return len(segments) - 1
        point = self._situation.recovery_point
        return max(sum(segment.base_offset <= point for segment in segments) - 1, 0)

    def _start_over(
        self, segments: list[Segment], snapshots: list[int]
    ) -> tuple[list[Segment], ReplayedState]:
        """The log ends below its start offset: replace it by an empty one at the start offset.

        All records that are left were deleted, and their offsets must not be assigned again.
        """
        end, start = segments[-1].next_offset, self._situation.start_offset
        if end < self._situation.recovery_point:
            self._report(segments[-1], f"it ends at {end}, below the log's start offset {start}")
            self._note_loss()
        _logger.warning(
            "log restarted at its start offset", path=self._path, end_offset=end, start_offset=start
        )
        self._drop(segments)
        for offset in snapshots:
            self._files.unlink(snapshot_path(self._path, offset))
        snapshots.clear()
        fresh = self._new_segment(start)
        fresh.created_ms = self._situation.now_ms
        fresh.activate(self._situation.settings)
        epochs = LeaderEpochs()
        epochs.is_dirty = True
        return [fresh], ReplayedState(Producers(), epochs, replay_from=start, seen_ms=0)

    # Producers and leader epochs

    def _start_state(
        self, segments: list[Segment], snapshots: list[int], resume: int
    ) -> ReplayedState:
        """Producers and epochs at the position where the check starts."""
        situation = self._situation
        limit = _OFFSET_MAX if situation.was_clean else situation.recovery_point
        usable = [offset for offset in snapshots if offset <= limit]
        found = load_snapshot(self._files, self._path, usable, situation.now_ms)
        start = segments[0].base_offset
        producers, snapshot_offset = found if found is not None else (Producers(), start)
        epochs = self._read_epochs()
        replay_from = snapshot_offset
        if epochs is None:
            epochs, replay_from = LeaderEpochs(), start
        elif not situation.was_clean:
            epochs.truncate_end(resume)
        state = ReplayedState(
            producers, epochs, replay_from=snapshot_offset, seen_ms=situation.now_ms
        )
        if replay_from < resume:
            replay(self._files, segments, state, start=replay_from, end=resume)
        return state

    def _read_epochs(self) -> LeaderEpochs | None:
        """None when they must be rebuilt from the log."""
        path = os.path.join(self._path, LEADER_EPOCHS)
        try:
            return LeaderEpochs.parse(read_whole(self._files, path))
        except FileNotFoundError:
            return None
        except CorruptCheckpoint as error:
            _logger.warning("leader epochs rebuilt", path=path, error=str(error))
            return None

    def _finish_state(
        self, segments: list[Segment], snapshots: list[int], state: ReplayedState
    ) -> ReplayedState:
        """Complete the producer state, or rebuild it if its snapshot is above the log's end."""
        situation = self._situation
        end = segments[-1].next_offset
        for offset in [offset for offset in snapshots if offset > end]:
            snapshots.remove(offset)
            self._files.unlink(snapshot_path(self._path, offset))
        state.epochs.truncate_end(end + 1)
        if state.replay_from > end:
            found = load_snapshot(self._files, self._path, snapshots, situation.now_ms)
            producers, snapshot_offset = found or (Producers(), segments[0].base_offset)
            state = ReplayedState(
                producers, state.epochs, replay_from=snapshot_offset, seen_ms=state.seen_ms
            )
            replay(self._files, segments, state, start=snapshot_offset, end=end)
        if state.replay_from > segments[0].base_offset and not state.producers.is_complete:
            load_earlier_batches(self._files, segments, state.producers, state.replay_from)
        return state

    # Checking

    def _check(
        self, segments: list[Segment], sizes: list[int], first: int, state: ReplayedState
    ) -> None:
        """Scan the log from the first segment to check on. Cut it at the first corrupt batch."""
        for place in range(first, len(segments)):
            segment, size = segments[place], sizes[place]
            checked_from, aborted = segment.size, len(state.aborted)
            replayed_from = max(segment.next_offset, state.replay_from)
            following = segments[place + 1 : place + 2]
            bound = following[0].base_offset if following else None
            with contextlib.closing(self._files.open(segment.path)) as file:
                error = scan(
                    file,
                    segment,
                    state,
                    start=checked_from,
                    size=size,
                    rules=OffsetRules(
                        bound=bound, may_have_gaps=self._situation.settings.is_compacted
                    ),
                )
                if (
                    error is None
                    and bound is not None
                    and segment.next_offset != bound <= segment.base_offset + OFFSETS_SPAN_MAX
                ):
                    # Compaction keeps the last offset of a segment, so its tail was lost. A gap
                    # between two segments is only valid if it is too large for one segment.
                    error = f"offsets {segment.next_offset} to {bound} are missing"
                if error is not None:
                    self._cut(file, segment, size, error)
                if self._situation.has_disk_failed:
                    self._write_again(file, segment)
            segment.checked_from = checked_from
            segment.is_warm = True
            if not self._situation.was_clean or error is not None:
                segment.synced_size = 0
                self._write_transactions(segment, state.aborted[aborted:], replayed_from)
                rewrite_indexes(self._files, segment)
            if error is not None:
                self._drop(segments[place + 1 :])
                del segments[place + 1 :]
            if place + 1 < len(segments):
                segment.close_indexes(self._files)
                segment.index = None
            else:
                return

    def _cut(self, file: File, segment: Segment, size: int, error: str) -> None:
        """Truncate a segment after its last sound batch."""
        is_damage = (
            self._situation.was_clean or segment.next_offset < self._situation.recovery_point
        )
        if is_damage:
            self._report(segment, error)
            self._note_loss()
            self._copy_aside(file, segment, size)
        else:
            _logger.warning(
                "unsynced tail removed",
                partition=os.path.basename(self._path),
                segment=os.path.basename(segment.path),
                error=error,
                bytes=size - segment.size,
                end_offset=segment.next_offset,
            )
        self._cut_bytes += size - segment.size
        file.truncate(segment.size)
        file.sync()  # or a power failure could restore the cut part behind new batches

    def _write_again(self, file: File, segment: Segment) -> None:
        """Replace a segment whose end may be in the page cache only by a synced copy.

        After a failed sync, the kernel marks the pages as clean. They can be read, but a later sync
        succeeds without writing them, and a power failure loses them.
        """
        path = segment.path + ".tmp"
        with contextlib.closing(self._files.open(path, create=True)) as copy:
            for at in range(0, segment.size, _COPY_BYTES):
                copy.write_at(at, file.read_at(at, min(_COPY_BYTES, segment.size - at)))
            copy.sync()
        self._files.rename(path, segment.path)
        self._files.sync_directory(self._path)

    def _copy_aside(self, file: File, segment: Segment, size: int) -> None:
        path = segment.path + DAMAGED_SUFFIX
        with contextlib.closing(self._files.open(path, create=True)) as copy:
            copy.truncate(0)
            for at in range(segment.size, size, _COPY_BYTES):
                copy.write_at(copy.size(), file.read_at(at, min(_COPY_BYTES, size - at)))

    def _drop(self, segments: list[Segment]) -> None:
        """Remove the segments behind a cut. Synced ones are kept as ``.damaged``."""
        for segment in segments:
            size = self._files.size(segment.path)
            self._cut_bytes += size
            if self._damage is not None and size:
                self._files.rename(segment.path, segment.path + DAMAGED_SUFFIX)
            for suffix in SEGMENT_SUFFIXES:
                path = segment.path_of(suffix)
                if self._files.exists(path):
                    self._files.unlink(path)
        if segments:
            self._files.sync_directory(self._path)

    def _write_transactions(
        self, segment: Segment, found: list[AbortedTransaction], replayed_from: int
    ) -> None:
        """Replace the end of a checked segment's transaction index by the result of the scan, which
        found all markers from an offset on. The entries before it are durable, and are not written
        again: another crash must not lose them.
        """
        if not found and not segment.has_own_transactions:
            return
        path = segment.path_of(TRANSACTION_INDEX_SUFFIX)
        kept: list[AbortedTransaction] = []
        if segment.has_own_transactions:
            below = min(replayed_from, segment.next_offset)
            kept = durable_transactions(read_whole(self._files, path), below)
        with contextlib.closing(self._files.open(path, create=True)) as file:
            size = len(kept) * TRANSACTION_ENTRY.size
            file.truncate(size)
            file.write_at(size, b"".join(entry.encode() for entry in found))
        segment.has_own_transactions = True
