"""Reads whole batches of one segment, from the page cache or in a thread.

The same code serves both. It gets bytes from a ``Reader``. A reader that must not wait returns None
for data that is not cached; then the caller creates a ``ColdRead`` for a thread. A cold read has
values and descriptors of its own, so changes on the event loop cannot disturb it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.ports.files import Buffer, Files
from riverrun.records.batch import HEADER_BYTES, LENGTH_MIN, MAGIC, CorruptBatch, crc_matches
from riverrun.storage.segment.index import OFFSET_ENTRY, OffsetIndex
from riverrun.storage.segment.open_files import Handle

Reader = Callable[[int, int], Buffer | None]

_BOUNDS = struct.Struct(">qi4xb6xi")
"""Fields of a batch header: base offset, length, magic, last offset delta."""
_bounds = _BOUNDS.unpack_from
_FIND_BYTES = 8192
_READ_AHEAD_BYTES = 1 << 20


class Slice(Struct):
    """Whole batches, and the offset after them."""

    data: Buffer
    next_offset: int


class SegmentView(Struct):
    """The values of a segment that a reader needs."""

    path: str
    index_path: str
    base_offset: int
    size: int
    next_offset: int
    index: OffsetIndex | None


class ReadableSegment(Protocol):
    """A segment or a view of one."""

    @property
    def path(self) -> str: ...

    size: int
    next_offset: int
    index: OffsetIndex | None


def read_batches(
    read: Reader,
    view: ReadableSegment,
    offset: int,
    position: int | None,
    *,
    max_bytes: int,
    end: int,
    at_least_one: bool,
) -> tuple[int, Slice] | None:
    """Batches from the one with ``offset`` on, and their position; None if it had to wait.

    ``position`` is the start of that batch, if it is known. If the returned position is the
    segment's size, the offset is behind the segment.
    """
    index, size = view.index, view.size
    if position is None:
        start = index.position_before(offset) if index is not None else 0
        position = find_batch(read, start, size, offset)
        if position is None:
            return None
    if position >= size:
        return size, Slice(b"", view.next_offset)
    stop = min(position + max_bytes, size)
    if stop == size and end >= view.next_offset:
        data = read(position, size - position)
        if data is None:
            return None
        if len(data) < size - position:
            raise CorruptBatch(f"{view.path} ends at {position + len(data)}, not at {size}")
        return position, Slice(data, view.next_offset)
    boundary = position
    if index is not None:
        boundary = index.position_at_most(stop)
        if end < view.next_offset:
            boundary = min(boundary, index.position_before(end))
    data = read(position, stop - position) if stop > position else b""
    if data is None:
        return None
    at, next_offset = _cut(view, data, position, boundary, end)
    if at == 0 and at_least_one:
        first = _first_batch(read, view, position, end)
        return None if first is None else (position, first)
    if next_offset is None:
        ahead = read(position + at, 8)
        if ahead is None:
            return None
        next_offset = int.from_bytes(ahead, "big") if len(ahead) == 8 else view.next_offset
    whole = data if at == len(data) else memoryview(data)[:at]
    return position, Slice(whole, next_offset)


def _cut(
    view: ReadableSegment, data: Buffer, position: int, boundary: int, end: int
) -> tuple[int, int | None]:
    """Where the whole batches below ``end`` stop, given that a batch starts at ``boundary``.

    Also returns the offset after them, if the data shows it.
    """
    at = max(boundary - position, 0)
    next_offset = None
    while at + HEADER_BYTES <= len(data):
        base, length, magic, delta = _bounds(data, at)
        if length < LENGTH_MIN or magic != MAGIC:
            raise CorruptBatch(f"no batch at {position + at} of {view.path}")
        if base + delta >= end or at + length + 12 > len(data):
            next_offset = base
            break
        at += length + 12
        next_offset = base + delta + 1
    return at, next_offset


def _first_batch(read: Reader, view: ReadableSegment, position: int, end: int) -> Slice | None:
    """One batch that is larger than the requested bytes; empty if it reaches ``end``."""
    header = read(position, HEADER_BYTES)
    if header is None:
        return None
    if len(header) < HEADER_BYTES:
        raise CorruptBatch(f"{view.path} ends within the batch at {position}")
    base, length, magic, delta = _bounds(header, 0)
    if length < LENGTH_MIN or magic != MAGIC or position + length + 12 > view.size:
        raise CorruptBatch(f"no batch at {position} of {view.path}")
    if base + delta >= end:
        return Slice(b"", base)
    data = read(position, length + 12)
    return None if data is None else Slice(data, base + delta + 1)


def find_batch(read: Reader, position: int, size: int, offset: int) -> int | None:
    """The position of the first batch that reaches an offset; ``size`` if none, None if cold."""
    chunk: Buffer | None = b""
    at = 0
    while True:
        assert chunk is not None
        if len(chunk) - at < _BOUNDS.size:
            position += at
            at = 0
            if position >= size:
                return size
            chunk = read(position, min(size - position, _FIND_BYTES))
            if chunk is None:
                return None
            if len(chunk) < HEADER_BYTES:
                raise CorruptBatch(f"no batch at {position}: the log ends there")
        base, length, magic, delta = _bounds(chunk, at)
        if length < LENGTH_MIN or magic != MAGIC:
            raise CorruptBatch(f"no batch at {position + at}")
        if base + delta >= offset:
            return position + at
        at += length + 12


def sound_prefix(data: Buffer, offset: int, bound: int) -> tuple[int, int]:
    """The bytes of these batches, read from ``offset`` on, that are sound; the offset after them.

    The CRC does not cover the base offset, so offsets must be consistent with each other. A batch
    after a gap (as compaction leaves them) that is followed by smaller offsets has a wrong offset.
    A sound batch ends below ``bound``.
    """
    at = 0
    expected = offset
    before_gap: tuple[int, int] | None = None
    while at + HEADER_BYTES <= len(data):
        base, length, magic, delta = _bounds(data, at)
        size = length + 12
        if length < LENGTH_MIN or magic != MAGIC or at + size > len(data):
            break
        if at and base < expected:
            return before_gap or (at, expected)
        if base + delta >= bound or base + delta < expected or not crc_matches(data, at, size):
            break
        before_gap = (at, expected) if base > expected else None
        expected = base + delta + 1
        at += size
    return at, expected


def load_index(files: Files, read: Reader, view: SegmentView) -> OffsetIndex | None:
    """Load the index file; None if it is missing or does not match the log."""
    try:
        file = files.open(view.index_path)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    index = OffsetIndex.parse(view.base_offset, data[: len(data) - len(data) % OFFSET_ENTRY.size])
    if index is None or not index_matches(read, view, index):
        return None
    return index


def index_matches(read: Reader, view: SegmentView, index: OffsetIndex) -> bool:
    """Whether the last entry of an index points to the batch with its offset."""
    last = index.last
    if last is None:
        return True
    offset, position = last
    if position + HEADER_BYTES > view.size:
        return False
    header = read(position, HEADER_BYTES)
    if header is None or len(header) < HEADER_BYTES:
        return False
    base, _, magic, delta = _bounds(header, 0)
    return bool(magic == MAGIC and base + delta == offset)


def rebuild_index(read: Reader, view: SegmentView, interval_bytes: int) -> OffsetIndex:
    """Build the index from the batch headers of a segment."""
    index = OffsetIndex(view.base_offset)
    position = since = at = 0
    chunk: Buffer = b""
    while position + at < view.size:
        if len(chunk) - at < HEADER_BYTES:
            position += at
            at = 0
            chunk = read(position, min(view.size - position, _READ_AHEAD_BYTES)) or b""
            if len(chunk) < HEADER_BYTES:
                break
        base, length, magic, delta = _bounds(chunk, at)
        if length < LENGTH_MIN or magic != MAGIC:
            break
        if since > interval_bytes:
            index.append(base + delta, position + at)
            since = 0
        since += length + 12
        at += length + 12
    return index


class ColdRead:
    """A read that waits for the disk: ``load`` in a thread, then ``adopt`` on the event loop."""

    __slots__ = (
        "_adopt",
        "_at_least_one",
        "_end",
        "_files",
        "_handle",
        "_interval_bytes",
        "_is_current",
        "_layout",
        "_max_bytes",
        "_offset",
        "_position",
        "_views",
        "again",
        "checked",
        "damage",
        "indexes",
        "next_offset",
    )

    def __init__(
        self,
        files: Files,
        views: list[SegmentView],
        handle: Handle | None,
        *,
        offset: int,
        position: int | None,
        max_bytes: int,
        end: int,
        at_least_one: bool,
        interval_bytes: int,
        adopt: Callable[[ColdRead], None],
        layout: int,
        is_current: Callable[[int], bool],
        again: Callable[[], Slice | ColdRead],
    ) -> None:
        self._files = files
        self._views = views
        self._handle = handle
        self._offset = offset
        self._position = position
        self._max_bytes = max_bytes
        self._end = end
        self._at_least_one = at_least_one
        self._interval_bytes = interval_bytes
        self._adopt = adopt
        self._layout = layout
        self._is_current = is_current
        self.again = again
        """Repeats the read on the current log. To be called on the event loop."""
        self.indexes: dict[int, OffsetIndex] = {}
        """Indexes that ``load`` loaded or built, by base offset of the segment."""
        self.checked: tuple[int, int, int] | None = None
        """Base offset, and the range of positions whose CRCs are right."""
        self.next_offset = -1
        """The offset after that range."""
        self.damage: str | None = None

    def load(self) -> Slice:
        """Read, waiting for the disk. Raises KafkaError if the data is gone or corrupt."""
        position = self._position
        try:
            for number, view in enumerate(self._views):
                result = self._load_from(view, position, self._handle if number == 0 else None)
                if result is not None:
                    return result
                position = 0
        except FileNotFoundError:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "The segment was discarded") from None
        except CorruptBatch as error:
            self.damage = str(error)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        finally:
            self._release()
        return Slice(b"", self._offset)

    def _load_from(
        self, view: SegmentView, position: int | None, handle: Handle | None
    ) -> Slice | None:
        """The batches, empty if they are above the end of the read; None if not in this segment."""
        file = self._files.open(view.path) if handle is None else handle.file
        try:
            if view.index is None:
                view.index = load_index(self._files, file.read_at, view)
                if view.index is None:
                    view.index = rebuild_index(file.read_at, view, self._interval_bytes)
                self.indexes[view.base_offset] = view.index
            found = read_batches(
                file.read_at,
                view,
                self._offset,
                position,
                max_bytes=self._max_bytes,
                end=self._end,
                at_least_one=self._at_least_one,
            )
            assert found is not None, "a reader that waits always returns data"
        finally:
            if handle is None:
                file.close()
        at, result = found
        if not result.data:
            return None if at >= view.size else Slice(b"", self._offset)
        sound, next_offset = sound_prefix(result.data, self._offset, result.next_offset)
        if sound < len(result.data):
            if not sound:
                raise CorruptBatch(f"the batch at {at} of {view.path} is damaged")
            return Slice(memoryview(result.data)[:sound], next_offset)
        self.checked = (view.base_offset, at, at + sound)
        self.next_offset = next_offset
        return result

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def is_current(self) -> bool:
        """Whether the positions were valid during the whole read. Otherwise call ``again``.

        Compaction moves batches to other positions, so a read that started before it may fail or,
        worse, skip records.
        """
        return self._is_current(self._layout)

    def adopt(self) -> None:
        """Let the log keep the indexes and checks of the thread."""
        self._adopt(self)

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.release()

    def __del__(self) -> None:
        # A read whose client disconnected is never loaded, but must not keep its file open.
        self._release()
