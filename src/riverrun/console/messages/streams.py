"""The records of one partition in one direction, a chunk at a time. Pure: ``reading`` fetches.

Kafka reads forward only. To go back, a window below the position is fetched and turned round; it
shrinks until it fits into the allowed bytes, and grows while records are small or missing.

With a filter, a batch that does not contain the text anywhere is not taken apart. It is one item
that covers all its records, so that its position is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from riverrun.client.fetcher import visible_batches
from riverrun.records.batch import BatchHeader, batches
from riverrun.records.record import Record, payload_of, read_records

OLDER: Final = "older"
NEWER: Final = "newer"
WINDOW_MAX: Final = 100_000
"""Offsets. Compacted logs have wide gaps."""
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024


class FoundRecord(Struct, frozen=True):
    """A record, with the facts of its batch."""

    partition: int
    record: Record
    compression: int
    producer_id: int
    is_transactional: bool
    has_append_time: bool


class StreamItem(Struct, frozen=True):
    """A record, or the records of a batch without a match."""

    timestamp: int
    edge: int
    """The position after it."""
    covers: int
    """How many records it stands for."""
    found: FoundRecord | None


class ChunkWish(Struct, frozen=True):
    """What to fetch next."""

    offset: int
    bytes_max: int


class PartitionStream:
    """``wish`` names the next fetch, ``feed`` takes its result, ``pop`` the next item.

    For older records ``position`` is the offset above the next one, for newer ones its own offset.
    """

    def __init__(
        self,
        partition: int,
        *,
        direction: str,
        start: int,
        end: int,
        position: int,
        needle: bytes,
        window: int,
        bytes_max: int,
    ) -> None:
        """The log is in [start, end). ``needle`` is a text in lower case; empty: no filter."""
        self.partition = partition
        self.position = min(max(position, start), end)
        self.chunk_position = self.position
        """The position after all items that are known."""
        self._is_older = direction == OLDER
        self._start = start
        self._end = end
        self._needle = needle
        self._window = max(1, window)
        self._bytes_max = bytes_max
        self._items: deque[StreamItem] = deque()

    @property
    def head(self) -> StreamItem | None:
        return self._items[0] if self._items else None

    @property
    def needs_data(self) -> bool:
        return not self._items and not self._is_read

    @property
    def _is_read(self) -> bool:
        """Whether everything has been fetched."""
        if self._is_older:
            return self.chunk_position <= self._start
        return self.chunk_position >= self._end

    @property
    def is_at_start(self) -> bool:
        return self.position <= self._start

    @property
    def is_at_end(self) -> bool:
        return self.position >= self._end

    def pop(self) -> StreamItem:
        item = self._items.popleft()
        self.position = item.edge
        if not self._items:
            self.position = self.chunk_position  # also over gaps and control records
        return item

    def wish(self) -> ChunkWish:
        assert self.needs_data, f"partition {self.partition} needs nothing"
        offset = self._low if self._is_older else self.chunk_position
        return ChunkWish(offset, self._bytes_max)

    @property
    def _low(self) -> int:
        return max(self._start, self.chunk_position - self._window)

    def feed(self, data: bytes, aborted: Sequence[tuple[int, int]], *, is_alone: bool) -> None:
        """Take the result of the wish. ``is_alone``: no other partition used up the response, so an
        empty one means that there is nothing. Raises CorruptBatch."""
        ends = [header.next_offset for _, header in batches(data)]
        if not ends:
            self._feed_nothing(is_alone=is_alone)
        elif self._is_older:
            self._feed_older(data, aborted, max(ends))
        else:
            low, high = self.chunk_position, self._end
            self._items.extend(items_of(data, self.partition, low, high, aborted, self._needle))
            self._advance(max(low, min(max(ends), high)))

    def start_moved(self, start: int) -> None:
        """Retention has deleted records: the log begins later."""
        self._start = min(max(start, self._start), self._end)
        self._advance(max(self.chunk_position, self._start))

    def _feed_nothing(self, *, is_alone: bool) -> None:
        if not is_alone:
            self._bytes_max = min(self._bytes_max * 4, CHUNK_BYTES_MAX)
        elif self._is_older:
            self._widen()
            self._advance(self._low)
        else:
            self._advance(self._end)

    def _feed_older(self, data: bytes, aborted: Sequence[tuple[int, int]], reached: int) -> None:
        low, high = self._low, self.chunk_position
        if reached < high and self._window > 1:
            # The newest records of the window did not fit. Try a smaller one.
            self._window = max(1, min(self._window // 2, reached - low))
            return
        first = next(header.base_offset for _, header in batches(data))
        low = max(self._start, min(low, first))  # the rest of the first batch costs nothing
        items = items_of(data, self.partition, low, high, aborted, self._needle)
        self._items.extend(turned(items, low))
        if len(data) < self._bytes_max // 2:
            self._widen()
        self._advance(low)

    def _widen(self) -> None:
        self._window = min(self._window * 2, WINDOW_MAX)

    def _advance(self, position: int) -> None:
        self.chunk_position = position
        if not self._items:
            self.position = position


def items_of(
    data: bytes,
    partition: int,
    low: int,
    high: int,
    aborted: Sequence[tuple[int, int]],
    needle: bytes,
) -> Iterator[StreamItem]:
    """The items with offsets in [low, high), oldest first. Raises CorruptBatch."""
    for at, header in visible_batches(data, low, aborted):
        if header.base_offset >= high:
            return
        batch = memoryview(data)[at : at + header.size]
        if needle and needle not in payload_of(batch, header).lower():
            yield _skipped(header, low, high)
            continue
        for record in read_records(batch):
            if low <= record.offset < high:
                is_match = not needle or has_text(record, needle)
                found = found_record(partition, header, record) if is_match else None
                yield StreamItem(record.timestamp, record.offset + 1, 1, found)


def _skipped(header: BatchHeader, low: int, high: int) -> StreamItem:
    first, last = max(header.base_offset, low), min(header.last_offset, high - 1)
    count = min(header.count, last - first + 1)
    return StreamItem(header.max_timestamp, last + 1, count, None)


def turned(items: Iterator[StreamItem], low: int) -> list[StreamItem]:
    """The items of [low, ...) newest first. The position after an item is then its own offset."""
    forward = list(items)
    found: list[StreamItem] = []
    for place in range(len(forward) - 1, -1, -1):
        item = forward[place]
        own = low if place == 0 else forward[place - 1].edge
        if item.found is not None:
            own = item.found.record.offset
        found.append(StreamItem(item.timestamp, own, item.covers, item.found))
    return found


def found_record(partition: int, header: BatchHeader, record: Record) -> FoundRecord:
    return FoundRecord(
        partition,
        record,
        header.compression,
        header.producer_id,
        header.is_transactional,
        header.has_log_append_time,
    )


def has_text(record: Record, needle: bytes) -> bool:
    """Whether key, value or a header contains a text in lower case. ASCII letters match in any
    case."""
    if needle in (record.key or b"").lower() or needle in (record.value or b"").lower():
        return True
    return any(
        needle in name.encode("utf-8", "surrogateescape").lower()
        or needle in (value or b"").lower()
        for name, value in record.headers
    )
