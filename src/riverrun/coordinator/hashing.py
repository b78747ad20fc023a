"""The partition of ``__consumer_offsets`` that a group belongs to, as Kafka computes it.

All nodes and all versions must agree on it, so it is Java's string hash.
"""

from functools import lru_cache

from riverrun.model.ids import PartitionIndex


def java_string_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, wrapped to 32 bits, signed."""
    units = text.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for at in range(0, len(units), 2):
        hashed = (31 * hashed + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


@lru_cache(maxsize=10_000)  # called for every heartbeat and commit
def partition_of(group_id: str, partitions: int) -> PartitionIndex:
    """The partition whose leader coordinates a group."""
    hashed = java_string_hash(group_id)
    # Kafka's Utils.abs maps the smallest int to zero, because its absolute value does not fit.
    return PartitionIndex(0 if hashed == -(1 << 31) else abs(hashed) % partitions)


def hash_map_bucket(text: str) -> int:
    """The bucket of a key in a Java HashMap of up to twelve keys, which decides its order."""
    hashed = java_string_hash(text) & 0xFFFFFFFF
    return (hashed ^ (hashed >> 16)) & 15
