"""The sparse indexes of a segment, in memory and in Kafka's files.

An index is a hint. A missing entry makes a search read more of the log, but never changes its
result. So entries are collected in memory and written to their file in pieces, each after the part
of the log that it points to. ``segment`` decides where the files are and when they are written.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from msgspec import Struct

from riverrun.ports.files import Buffer

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qI")
TRANSACTION_ENTRY = struct.Struct(">hqqqq")
OFFSETS_SPAN_MAX = 2**31 - 1
"""Index entries hold offsets relative to the base offset, as signed 32-bit integers in Kafka."""


class OffsetIndex:
    """Maps the last offset of a batch to its position. Both increase from entry to entry."""

    __slots__ = ("_offsets", "_positions", "base_offset", "pending")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.pending = bytearray()
        """Entries that are not in the file yet."""
        self._offsets = array("I")
        self._positions = array("I")

    @classmethod
    def parse(cls, base_offset: int, data: Buffer) -> OffsetIndex | None:
        """Parse an index file; None if it is not valid."""
        if len(data) % OFFSET_ENTRY.size:
            return None
        words = array("I", bytes(data))
        if sys.byteorder == "little":
            words.byteswap()
        index = cls(base_offset)
        index._offsets = words[0::2]
        index._positions = words[1::2]
        for column in (index._offsets, index._positions):
            if any(map(int.__ge__, column, memoryview(column)[1:])):
                return None
        return index

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last(self) -> tuple[int, int] | None:
        """The newest entry: offset and position."""
        if not self._offsets:
            return None
        return self.base_offset + self._offsets[-1], self._positions[-1]

    def append(self, last_offset: int, position: int) -> None:
        relative = last_offset - self.base_offset
        # In this order, because a thread may search meanwhile: each offset has its position.
        self._positions.append(position)
        self._offsets.append(relative)
        self.pending += OFFSET_ENTRY.pack(relative, position)

    def position_before(self, offset: int) -> int:
        """The position of a batch at or before the one with this offset."""
        place = bisect_right(self._offsets, max(offset - self.base_offset, -1))
        return self._positions[place - 1] if place else 0

    def position_at_most(self, position: int) -> int:
        """The last indexed start of a batch at or before a position."""
        place = bisect_right(self._positions, position)
        return self._positions[place - 1] if place else 0

    def has(self, last_offset: int, position: int) -> bool:
        """Whether this exact entry exists."""
        place = bisect_left(self._positions, position)
        return (
            place < len(self._positions)
            and self._positions[place] == position
            and self._offsets[place] == last_offset - self.base_offset
        )

    def truncate(self, size: int) -> None:
        """Drop entries at or after a position. The file may then be too long."""
        place = bisect_left(self._positions, size)
        _shorten_pending(self.pending, len(self._offsets) - place, OFFSET_ENTRY.size)
        del self._offsets[place:]
        del self._positions[place:]

    def encode(self) -> bytes:
        words = array("I", bytes(len(self._offsets) * OFFSET_ENTRY.size))
        words[0::2] = self._offsets
        words[1::2] = self._positions
        if sys.byteorder == "little":
            words.byteswap()
        return words.tobytes()


class TimeIndex:
    """Maps the largest timestamp so far to the last offset of its batch. Both increase."""

    __slots__ = ("_offsets", "_timestamps", "base_offset", "pending")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.pending = bytearray()
        self._timestamps = array("q")
        self._offsets = array("I")

    @classmethod
    def parse(cls, base_offset: int, data: Buffer) -> TimeIndex | None:
        if len(data) % TIME_ENTRY.size:
            return None
        index = cls(base_offset)
        last = -2
        for timestamp, relative in TIME_ENTRY.iter_unpack(data):
            if timestamp <= last or (index._offsets and relative < index._offsets[-1]):
                return None
            last = timestamp
            index._timestamps.append(timestamp)
            index._offsets.append(relative)
        return index

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int] | None:
        """The newest entry: timestamp and offset."""
        if not self._timestamps:
            return None
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def append(self, timestamp: int, offset: int) -> None:
        """Skips an entry that is not later than the one before, which Kafka does not allow."""
        if timestamp < 0 or (self._timestamps and timestamp <= self._timestamps[-1]):
            return
        relative = offset - self.base_offset
        self._offsets.append(relative)
        self._timestamps.append(timestamp)
        self.pending += TIME_ENTRY.pack(timestamp, relative)

    def offset_before(self, timestamp: int) -> int:
        """An offset before which every record is earlier than a timestamp."""
        place = bisect_left(self._timestamps, timestamp)
        return self.base_offset + self._offsets[place - 1] if place else self.base_offset

    def truncate(self, offset: int) -> None:
        """Drop entries at or above an offset. The file may then be too long."""
        place = bisect_left(self._offsets, max(offset - self.base_offset, 0))
        _shorten_pending(self.pending, len(self._offsets) - place, TIME_ENTRY.size)
        del self._timestamps[place:]
        del self._offsets[place:]

    def encode(self) -> bytes:
        pairs = zip(self._timestamps, self._offsets, strict=True)
        return b"".join(TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs)


def _shorten_pending(pending: bytearray, entries: int, entry_bytes: int) -> None:
    del pending[max(len(pending) - entries * entry_bytes, 0) :]


class AbortedTransaction(Struct, frozen=True):
    """An aborted transaction, whose records read_committed consumers skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return TRANSACTION_ENTRY.pack(
            0, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


def durable_transactions(data: Buffer, offset: int) -> list[AbortedTransaction]:
    """The leading entries of a transaction index whose markers are below an offset.

    The file is in the order of markers, and was synced up to there. A crash may have torn or zeroed
    the rest. A transaction starts before its marker, but a zeroed entry does not.
    """
    found: list[AbortedTransaction] = []
    whole = len(data) - len(data) % TRANSACTION_ENTRY.size
    last = -1
    for version, *entry in TRANSACTION_ENTRY.iter_unpack(memoryview(data)[:whole]):
        transaction = AbortedTransaction(*entry)
        least = max(last, transaction.first_offset)
        if version != 0 or not least < transaction.last_offset < offset:
            break
        found.append(transaction)
        last = transaction.last_offset
    return found


def parse_transactions(data: Buffer) -> tuple[AbortedTransaction, ...] | None:
    """Parse a transaction index file; None if it is not valid."""
    if len(data) % TRANSACTION_ENTRY.size:
        return None
    return tuple(
        AbortedTransaction(*entry)
        for version, *entry in TRANSACTION_ENTRY.iter_unpack(data)
        if version == 0
    )
