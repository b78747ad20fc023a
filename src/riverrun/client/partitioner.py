"""The partition of a record: by Kafka's hash of its key, or one partition per batch without a key.

The hash must equal that of other clients. Otherwise records with one key would be spread over
partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from riverrun.ports.randomness import Randomness

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2, unsigned."""
    size = len(data)
    mixed = _SEED ^ size
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _WORD
        word = (word ^ word >> 24) * _MULTIPLIER & _WORD
        mixed = (mixed * _MULTIPLIER & _WORD) ^ word
    if whole < size:
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _WORD
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _WORD
    return mixed ^ mixed >> 15


def partition_of_key(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count


class StickyChoice:
    """One partition for all records without a key, until ``move`` picks another (KIP-480). This
    fills batches, instead of sending a few records to each partition.
    """

    def __init__(self, partitions: Sequence[int], randomness: Randomness) -> None:
        assert partitions, "a topic has at least one partition"
        self._partitions = list(partitions)
        self._randomness = randomness
        self.current = self._partitions[randomness.below(len(self._partitions))]

    def move(self) -> None:
        others = [index for index in self._partitions if index != self.current]
        if others:
            self.current = others[self._randomness.below(len(others))]
