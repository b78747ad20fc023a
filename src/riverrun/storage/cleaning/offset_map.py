"""Keys and the latest offset of each, in a bounded amount of memory.

Compaction of a large log meets millions of keys. A dict would take some 200 bytes for each; this
table takes 24, as Kafka's does: a digest in place of the key, and the offset. Two keys with the
same digest of 128 bits would be taken for one; that is less likely than a broken disk.
"""

from __future__ import annotations

import hashlib
import struct
from array import array

ENTRY_BYTES = 24

_digest = hashlib.blake2b
_WORDS = struct.Struct("<QQ")


class OffsetMap:
    """Open addressing with linear probing; entries are never removed."""

    __slots__ = ("_first", "_offsets", "_second", "_slots", "capacity", "size")

    def __init__(self, capacity: int, load_factor: float = 0.9) -> None:
        assert capacity > 0, "a map without room can never be filled"
        slots = int(capacity / load_factor) + 1
        self._slots = slots
        self._first = array("Q", bytes(8 * slots))
        self._second = array("Q", bytes(8 * slots))
        self._offsets = array("q", bytes(8 * slots))
        self.capacity = capacity
        self.size = 0

    @classmethod
    def capacity_of(cls, bytes_max: int, load_factor: float = 0.9) -> int:
        """How many keys fit into so much memory."""
        return max(int(bytes_max // ENTRY_BYTES * load_factor) - 1, 1)

    def put(self, key: bytes, offset: int) -> None:
        """Remember the latest offset of a key. Offsets come in ascending order."""
        first, second = _WORDS.unpack(_digest(key, digest_size=16).digest())
        place = self._find(first, second)
        if self._offsets[place] == 0:
            assert self.size < self.capacity, "the map is full"
            self.size += 1
            self._first[place] = first
            self._second[place] = second
        self._offsets[place] = offset + 1  # so that 0 means an empty slot

    def get(self, key: bytes) -> int:
        """The latest offset of a key, or -1."""
        return self._offsets[self._find(*_WORDS.unpack(_digest(key, digest_size=16).digest()))] - 1

    def _find(self, first: int, second: int) -> int:
        """The slot of a digest, or the one where it belongs."""
        firsts, seconds, offsets, slots = self._first, self._second, self._offsets, self._slots
        place = first % slots
        while offsets[place] and (firsts[place] != first or seconds[place] != second):
            place += 1
            if place == slots:
                place = 0
        return place
