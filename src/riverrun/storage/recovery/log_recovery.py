"""Opens a partition's directory: what a power cut, a kill or a clean stop left behind.

After a clean stop only the last few batches are looked at. Otherwise everything behind the recovery
point, up to which the log was synced, is checked batch by batch, and cut at the first that is not
sound, together with whatever follows it. Damage below the recovery point was promised to be
durable: then the sound prefix is kept, what follows is set aside as ``.damaged`` and reported.
Runs in a thread; nothing here is shared with the event loop.
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
from riverrun.storage.producer_snapshots import load_snapshot, recall_earlier, replay, snapshot_path
from riverrun.storage.producers import Producers
from riverrun.storage.recovery.leftovers import tidy
from riverrun.storage.recovery.loss import read_loss, write_loss
from riverrun.storage.segment.index import OFFSETS_SPAN_MAX, parse_transactions
from riverrun.storage.segment.index_files import (
    describe,
    load_indexed_part,
    write_anew,
)
from riverrun.storage.segment.open_files import OpenFiles
from riverrun.storage.segment.scan import OffsetRules, ReplayedState, scan
from riverrun.storage.segment.segment import (
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
_EVER = 2**63 - 1
_FIRST_LOG = file_name(0, LOG_SUFFIX)
_BLANK_NAMES = (
    _FIRST_LOG,
    file_name(0, INDEX_SUFFIX),
    file_name(0, TIME_INDEX_SUFFIX),
    PARTITION_METADATA,
)
_logger = structlog.get_logger("riverrun.storage")


class RecoverySituation(Struct, kw_only=True):
    """What is known about a log before its files are read."""

    path: str
    settings: LogSettings
    start_offset: int
    recovery_point: int
    was_clean: bool
    now_ms: int
    is_doubtful: bool = False
    """Whether the disk failed under the last process: see ``_Recovery._write_again``."""
    is_replica: bool = True
    """Whether others have copies, and must hear of a loss. The quorum has rules of its own."""


class RecoveredLog(Struct, kw_only=True):
    """What a log starts from."""

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs
    start_offset: int
    recovery_point: int
    snapshots: list[int]
    cut_bytes: int = 0
    damage: str | None = None
    """Said when something that had been synced is lost."""
    damaged_at: int | None = None
    """From where on what is left is not sound; None when the damage was cut away."""
    is_durable: bool = False
    """Whether the names of the files are known to survive a power cut."""


def recover(files: Files, open_files: OpenFiles, situation: RecoverySituation) -> RecoveredLog:
    """Everything about the log of one partition, from its files."""
    return _blank(files, open_files, situation) or _Recovery(files, open_files, situation).run()


def begin(open_files: OpenFiles, situation: RecoverySituation) -> RecoveredLog:
    """What a log starts from that has a directory and nothing in it."""
    segment = Segment(open_files, situation.path, 0)
    segment.created_ms = situation.now_ms
    segment.open(create=True)
    return _begun(segment)


def _begun(segment: Segment, *, is_durable: bool = False) -> RecoveredLog:
    return RecoveredLog(
        segments=[segment],
        producers=Producers(),
        epochs=LeaderEpochs(),
        start_offset=0,
        recovery_point=0,
        snapshots=[],
        is_durable=is_durable,
    )


def _blank(
    files: Files, open_files: OpenFiles, situation: RecoverySituation
) -> RecoveredLog | None:
    """Of a log to which nothing was ever appended, and in which nothing is to be checked.

    A node may hold ten thousand of them, which would take seconds to check.
    """
    path = situation.path
    if situation.start_offset or situation.recovery_point or situation.is_doubtful:
        return None
    names = files.list_directory(path)
    if _FIRST_LOG not in names or any(name not in _BLANK_NAMES for name in names):
        return None
    if any(files.size(os.path.join(path, n)) for n in names if n != PARTITION_METADATA):
        return None
    segment = Segment(open_files, path, 0)
    segment.created_ms = situation.now_ms
    segment.is_warm = True
    segment.activate(situation.settings)
    return _begun(segment, is_durable=situation.was_clean)


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
        names = tidy(self._files, self._path)
        segments = self._find_segments(names)
        sizes = [segment.size for segment in segments]
        first = self._first_suspect(segments)
        for segment in segments[:first]:
            problem = describe(self._files, segment, situation.settings)
            if problem is not None:
                self._report(segment, problem)
                known, base = self._damaged_at, segment.base_offset
                self._damaged_at = base if known is None else min(known, base)
        with contextlib.closing(self._files.open(segments[first].path)) as file:
            trusted = _EVER if situation.was_clean else situation.recovery_point
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

    def _report(self, segment: Segment, problem: str) -> None:
        self._damage = f"{os.path.basename(segment.path)}: {problem}"
        _logger.error(
            "log damaged below its recovery point", partition=os.path.basename(self._path),
            segment=os.path.basename(segment.path), problem=problem,
        )  # fmt: skip

    def _note_loss(self) -> None:
        """Before anything is cut: after a crash from then on, the log would look sound."""
        assert self._damage is not None, "nothing was lost"
        if self._situation.is_replica:
            write_loss(self._files, self._path, self._damage)

    # Which files there are

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

    def _first_suspect(self, segments: list[Segment]) -> int:
        """From which segment on the log has to be checked: the one with the recovery point."""
        if self._situation.was_clean:
            return len(segments) - 1
        point = self._situation.recovery_point
        return max(sum(segment.base_offset <= point for segment in segments) - 1, 0)

    def _start_over(
        self, segments: list[Segment], snapshots: list[int]
    ) -> tuple[list[Segment], ReplayedState]:
        """The log ends below its start offset: all that is left was deleted, and no offset of it
        may be given out again."""
        end, start = segments[-1].next_offset, self._situation.start_offset
        if end < self._situation.recovery_point:
            self._report(segments[-1], f"it ends at {end}, below the log's start offset {start}")
            self._note_loss()
        _logger.warning("log starts over", path=self._path, end_offset=end, start_offset=start)
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

    # What is known where checking begins, and in the end

    def _start_state(
        self, segments: list[Segment], snapshots: list[int], resume: int
    ) -> ReplayedState:
        """Producers and epochs as they were at the place from which the log is checked."""
        situation = self._situation
        limit = _EVER if situation.was_clean else situation.recovery_point
        usable = [offset for offset in snapshots if offset <= limit]
        found = load_snapshot(self._files, self._path, usable, situation.now_ms)
        start = segments[0].base_offset
        producers, noted = found if found is not None else (Producers(), start)
        epochs = self._read_epochs()
        replay_from = noted
        if epochs is None:
            epochs, replay_from = LeaderEpochs(), start
        elif not situation.was_clean:
            epochs.truncate_end(resume)
        state = ReplayedState(producers, epochs, replay_from=noted, seen_ms=situation.now_ms)
        if replay_from < resume:
            replay(self._files, segments, state, start=replay_from, end=resume)
        return state

    def _read_epochs(self) -> LeaderEpochs | None:
        """None when the log has to tell."""
        path = os.path.join(self._path, LEADER_EPOCHS)
        try:
            return LeaderEpochs.parse(read_whole(self._files, path))
        except FileNotFoundError:
            return None
        except CorruptCheckpoint as error:
            _logger.warning("leader epochs rebuilt", path=path, reason=str(error))
            return None

    def _finish_state(
        self, segments: list[Segment], snapshots: list[int], state: ReplayedState
    ) -> ReplayedState:
        """Repair what a snapshot lacks, or begin again where it says more than the log does."""
        situation = self._situation
        end = segments[-1].next_offset
        for offset in [offset for offset in snapshots if offset > end]:
            snapshots.remove(offset)
            self._files.unlink(snapshot_path(self._path, offset))
        state.epochs.truncate_end(end + 1)
        if state.replay_from > end:
            found = load_snapshot(self._files, self._path, snapshots, situation.now_ms)
            producers, noted = found or (Producers(), segments[0].base_offset)
            state = ReplayedState(producers, state.epochs, replay_from=noted, seen_ms=state.seen_ms)
            replay(self._files, segments, state, start=noted, end=end)
        if state.replay_from > segments[0].base_offset and state.producers.has_gaps:
            recall_earlier(self._files, segments, state.producers, state.replay_from)
        return state

    # Checking

    def _check(
        self, segments: list[Segment], sizes: list[int], first: int, state: ReplayedState
    ) -> None:
        """Read the log from the suspect place on; drop what is not sound and all behind it."""
        for place in range(first, len(segments)):
            segment, size = segments[place], sizes[place]
            checked_from, aborted = segment.size, len(state.aborted)
            following = segments[place + 1 : place + 2]
            bound = following[0].base_offset if following else None
            with contextlib.closing(self._files.open(segment.path)) as file:
                problem = scan(
                    file, segment, state, start=checked_from, size=size,
                    rules=OffsetRules(
                        bound=bound, may_have_gaps=self._situation.settings.is_compacted
                    ),
                )  # fmt: skip
                if (
                    problem is None
                    and bound is not None
                    and segment.next_offset != bound <= segment.base_offset + OFFSETS_SPAN_MAX
                ):
                    # Compaction keeps the last offset of a segment; so its tail was lost. Only a
                    # gap that no segment can span, in what a follower was sent, lies between two.
                    problem = f"offsets {segment.next_offset} to {bound} are missing"
                if problem is not None:
                    self._cut(file, segment, size, problem)
                if self._situation.is_doubtful:
                    self._write_again(file, segment)
            segment.checked_from = checked_from
            segment.is_warm = True
            if not self._situation.was_clean or problem is not None:
                segment.synced_size = 0
                self._write_transactions(segment, state, aborted)
                write_anew(self._files, segment)
            if problem is not None:
                self._drop(segments[place + 1 :])
                del segments[place + 1 :]
            if place + 1 < len(segments):
                segment.close_indexes(self._files)
                segment.index = None
            else:
                return

    def _cut(self, file: File, segment: Segment, size: int, problem: str) -> None:
        """Cut a segment behind its last sound batch."""
        is_damage = (
            self._situation.was_clean or segment.next_offset < self._situation.recovery_point
        )
        if is_damage:
            self._report(segment, problem)
            self._note_loss()
            self._copy_aside(file, segment, size)
        else:
            _logger.warning(
                "torn tail cut", partition=os.path.basename(self._path),
                segment=os.path.basename(segment.path), problem=problem,
                bytes=size - segment.size, end_offset=segment.next_offset,
            )  # fmt: skip
        self._cut_bytes += size - segment.size
        file.truncate(segment.size)
        file.sync()  # else the cut part could come back behind what is appended now

    def _write_again(self, file: File, segment: Segment) -> None:
        """Put a copy in the place of a segment whose end may lie in memory alone.

        After a sync that failed the kernel calls the pages clean. They can be read, and no later
        sync would write them: it would succeed, and a power cut would still take them.
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
        """Take away the segments behind a cut; what was synced is kept aside."""
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

    def _write_transactions(self, segment: Segment, state: ReplayedState, known: int) -> None:
        """Write the transaction index of a checked segment anew, from what the check found."""
        found = state.aborted[known:]
        if not found and not segment.has_own_transactions:
            return
        path = segment.path_of(TRANSACTION_INDEX_SUFFIX)
        entries = b""
        if segment.has_own_transactions:
            kept = parse_transactions(read_whole(self._files, path)) or ()
            starts = min((entry.last_offset for entry in found), default=segment.next_offset)
            entries = b"".join(entry.encode() for entry in kept if entry.last_offset < starts)
        with contextlib.closing(self._files.open(path, create=True)) as file:
            file.truncate(0)
            file.write_at(0, entries + b"".join(entry.encode() for entry in found))
        segment.has_own_transactions = True
