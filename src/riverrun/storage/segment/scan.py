"""Scans the batches of a segment file in large reads: the inner loop of recovery and scrubbing.

Every batch is checked (format, order, CRC) before it changes any state. A scan updates the segment,
the producers and the leader epochs. The caller decides where to start and how to handle damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from crc32c import crc32c

from riverrun.ports.files import File
from riverrun.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    BatchHeader,
    Buffer,
    CorruptBatch,
    crc_matches,
    read_header,
)
from riverrun.storage.leader_epochs import LeaderEpochs
from riverrun.storage.producers import Producers
from riverrun.storage.segment.index import OFFSETS_SPAN_MAX, AbortedTransaction
from riverrun.storage.segment.segment import Segment

CHUNK_BYTES = 1 << 18
"""Fits into a processor's cache, so that the CRC is computed from there."""
_NEVER = 2**63


class ReplayedState:
    """State that follows from the batches of a log: producers, leader epochs, aborts."""

    __slots__ = ("aborted", "epochs", "producers", "replay_from", "seen_ms")

    def __init__(
        self, producers: Producers, epochs: LeaderEpochs, *, replay_from: int, seen_ms: int
    ) -> None:
        self.producers = producers
        self.epochs = epochs
        self.replay_from = replay_from
        """The producer state includes batches below this offset already."""
        self.seen_ms = seen_ms
        self.aborted: list[AbortedTransaction] = []

    @classmethod
    def ignored(cls) -> ReplayedState:
        """For scans that need the segment only."""
        return cls(Producers(), LeaderEpochs(), replay_from=_NEVER, seen_ms=0)

    def replay(self, header: BatchHeader, batch: Buffer) -> None:
        """Account for one batch. ``batch`` holds the whole batch if it is a control batch."""
        if header.leader_epoch > self.epochs.latest:
            self.epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= self.replay_from:
            aborted = self.producers.replay(header, header.base_offset, batch, self.seen_ms)
            if aborted is not None:
                self.aborted.append(aborted)


class OffsetRules(NamedTuple):
    """Constraints on the offsets of a segment, besides that they increase."""

    below: int = 2**63
    """Batches that reach this offset are not read."""
    bound: int | None = None
    """The next segment's base offset, if there is one."""
    may_have_gaps: bool = True


class SegmentSource(Protocol):
    """A file, or a throttled one."""

    def read_at(self, position: int, length: int) -> bytes: ...


def scan(
    file: SegmentSource,
    segment: Segment,
    state: ReplayedState,
    *,
    start: int,
    size: int,
    rules: OffsetRules = OffsetRules(),  # noqa: B008 - immutable
) -> str | None:
    """Scan the batches of a segment from a position on, and add them to its state.

    Stops at the first corrupt batch and returns the error. ``segment.size`` is then the size of the
    sound part. The segment's state must end at ``start``.
    """
    assert segment.size == start, f"{segment.path} was scanned up to {segment.size}, not {start}"
    unpack = HEADER.unpack_from
    expected = segment.next_offset
    epoch_seen: int = state.epochs.epoch_at(expected)
    below = rules.below
    position, at, data = start, 0, b""
    view = memoryview(data)
    while position + at < size:
        if len(data) - at < HEADER_BYTES:
            position, at = position + at, 0
            data = file.read_at(position, min(CHUNK_BYTES, size - position))
            view = memoryview(data)
            if len(data) < HEADER_BYTES:
                return f"{len(data)} bytes at {position} are too few for a batch"
        fields = unpack(data, at)
        base, length, epoch, magic, crc, _, delta, _, timestamp, producer_id, _, _, _ = fields
        end = at + length + 12
        if length < LENGTH_MIN or magic != MAGIC or delta < 0 or position + end > size:
            return _format_error(fields, position + at)
        if base + delta >= below:
            return None
        if base != expected or epoch != epoch_seen:
            place = BatchPosition(file, position + at, position + end, size)
            problem = _check_jump(segment, place, fields, epoch_seen, rules)
            if problem is not None:
                return problem
        if end > len(data):
            position, at, end = position + at, 0, length + 12
            is_sound, data = _read_large(file, position, end, size, crc)
            view = memoryview(data)
        else:
            is_sound = crc32c(view[at + CRC_START : end]) == crc
        if not is_sound:
            return f"the batch at {position + at} does not match its CRC"
        if epoch > epoch_seen or producer_id >= 0:
            state.replay(BatchHeader(*fields), view[at:end])
            epoch_seen = epoch
        segment.note(length + 12, base + delta, timestamp)
        expected = base + delta + 1
        at = end
    return None


def _format_error(fields: tuple[int, ...], position: int) -> str:
    length, magic, delta = fields[1], fields[3], fields[6]
    if length < LENGTH_MIN or magic != MAGIC or delta < 0:
        return f"there is no batch at {position}"
    return f"the batch at {position} is cut short"


def _read_large(
    file: SegmentSource, position: int, end: int, size: int, crc: int
) -> tuple[bool, bytes]:
    """Check a batch that exceeds the chunk. Returns whether it is sound, and a chunk from it on."""
    if end > CHUNK_BYTES:
        return _crc_matches_in_pieces(file, position, end, crc), file.read_at(
            position, HEADER_BYTES
        )
    data = file.read_at(position, min(CHUNK_BYTES, size - position))
    return len(data) >= end and crc_matches(data, 0, end), data


class BatchPosition(NamedTuple):
    """The place of a batch in a file of a given size."""

    file: SegmentSource
    start: int
    stop: int
    size: int


def _check_jump(
    segment: Segment,
    place: BatchPosition,
    fields: tuple[int, ...],
    epoch_seen: int,
    rules: OffsetRules,
) -> str | None:
    """Check an unexpected offset or epoch against the next batch, because the CRC covers neither.

    Compaction leaves gaps, and an epoch increases when a leader is elected. In both cases the next
    batch continues from there. A gap before the last batch is valid on compacted topics only.
    """
    base, epoch, delta = fields[0], fields[2], fields[6]
    expected = segment.next_offset
    bound = rules.bound
    if bound is None:
        bound = segment.base_offset + OFFSETS_SPAN_MAX + 1
    if base < expected or base + delta >= bound or epoch < epoch_seen:
        return (
            f"the batch at {place.start} has offset {base} and epoch {epoch} "
            f"where {expected} and {epoch_seen} are next"
        )
    if place.stop + HEADER_BYTES <= place.size:
        following = read_header(place.file.read_at(place.stop, HEADER_BYTES))
        is_batch = following.magic == MAGIC and following.length >= LENGTH_MIN
        if is_batch and (following.base_offset <= base + delta or following.leader_epoch < epoch):
            return (
                f"the batch at {place.start} has offset {base} and epoch {epoch}, "
                f"but {following.base_offset} and {following.leader_epoch} follow"
            )
    elif base != expected and rules.bound is None and not rules.may_have_gaps:
        return f"the last batch, at {place.start}, has offset {base} where {expected} is next"
    return None


def _crc_matches_in_pieces(file: SegmentSource, position: int, size: int, crc: int) -> bool:
    """Check the CRC of a large batch in pieces, because a corrupt length may be huge."""
    found = 0
    at = CRC_START
    while at < size:
        piece = file.read_at(position + at, min(CHUNK_BYTES, size - at))
        if not piece:
            return False
        found = crc32c(piece, found)
        at += len(piece)
    return found == crc


def headers(file: File, start: int, size: int) -> Iterator[tuple[int, BatchHeader, bytes]]:
    """Position and header of each batch in a sound range, and the bytes of control batches."""
    position = start
    while position + HEADER_BYTES <= size:
        data = file.read_at(position, min(CHUNK_BYTES, size - position))
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = read_header(data, at)
            if header.length < LENGTH_MIN or header.magic != MAGIC:
                raise CorruptBatch(f"no batch at {position + at}")
            if header.is_control:
                yield position + at, header, file.read_at(position + at, header.size)
            else:
                yield position + at, header, b""
            at += header.size
        if at == 0:
            return
        position += at
