"""The latest offset of each key, in a bounded amount of memory.

A large log has millions of keys. A dict takes some 200 bytes for each. This table takes 24, as in
Kafka: a 128-bit digest of the key, and the offset. Two keys with the same digest would be treated
as one, which is less likely than a broken disk.
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
        assert capacity > 0, "the capacity must be positive"
        slots = int(capacity / load_factor) + 1
        self._slots = slots
        self._first = array("Q", bytes(8 * slots))
        self._second = array("Q", bytes(8 * slots))
        self._offsets = array("q", bytes(8 * slots))
        self.capacity = capacity
        self.size = 0

    @classmethod
    def capacity_of(cls, bytes_max: int, load_factor: float = 0.9) -> int:
        """The number of keys that fit into this much memory."""
        return max(int(bytes_max // ENTRY_BYTES * load_factor) - 1, 1)

    def put(self, key: bytes, offset: int) -> None:
        """Set the latest offset of a key. Offsets are put in ascending order."""
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
        """The slot of a digest, or the free slot for it."""
        firsts, seconds, offsets, slots = self._first, self._second, self._offsets, self._slots
        place = first % slots
        while offsets[place] and (firsts[place] != first or seconds[place] != second):
            place += 1
            if place == slots:
                place = 0
        return place
