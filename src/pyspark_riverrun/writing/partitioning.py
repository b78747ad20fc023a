"""Kafka's default partitioner for many keys at once.

murmur2 runs one step for all keys that are long enough. Tests compare the result with
``client.partitioner``, which hashes one key.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint32]

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_WORD_BYTES: Final = 4


def bounds_of(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The offsets of a binary or string array: each value is [bounds[i], bounds[i + 1])."""
    size = 8 if pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type) else 4
    kind = np.int64 if size == 8 else np.int32
    buffer = keys.buffers()[1]
    if buffer is None or len(keys) == 0:
        return np.zeros(len(keys) + 1, np.int64)
    found = np.frombuffer(buffer, kind, count=len(keys) + 1, offset=keys.offset * size)
    return found.astype(np.int64)


def hashes_of(keys: pa.Array) -> Hashes:
    """murmur2 of each key. The hash of a null is undefined."""
    bounds = bounds_of(keys)
    start, sizes = bounds[:-1], np.diff(bounds)
    buffer = keys.buffers()[2]
    # Words are read in place, so the last one may extend beyond the keys.
    data_bytes = b"" if buffer is None else memoryview(buffer)[: int(bounds[-1])]
    data = np.frombuffer(bytes(data_bytes) + bytes(_WORD_BYTES), np.uint8)
    words = np.ndarray((len(data) - 3,), np.dtype("<u4"), data, strides=(1,))
    with np.errstate(over="ignore"):
        mixed: Hashes = _SEED ^ sizes.astype(np.uint32)
        counts = sizes // _WORD_BYTES
        most = int(counts.max()) if len(counts) else 0
        for step in range(most):
            if step < int(counts.min()):
                mixed = _step(mixed, words[start + step * _WORD_BYTES])
            else:
                left = np.flatnonzero(counts > step)
                mixed[left] = _step(mixed[left], words[start[left] + step * _WORD_BYTES])
        rest = sizes % _WORD_BYTES
        some = np.flatnonzero(rest)
        if len(some):
            tails = words[start[some] + counts[some] * _WORD_BYTES]
            masks = (np.uint64(1) << (rest[some] * 8).astype(np.uint64)) - np.uint64(1)
            mixed[some] = (mixed[some] ^ (tails & masks.astype(np.uint32))) * _MULTIPLIER
        mixed = (mixed ^ mixed >> np.uint32(13)) * _MULTIPLIER
        return mixed ^ mixed >> np.uint32(15)


def partitions_of_keys(keys: pa.Array, count: int) -> npt.NDArray[np.int64]:
    """The partition of each key."""
    return (hashes_of(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % count


def _step(mixed: Hashes, words: Hashes) -> Hashes:
    word = words * _MULTIPLIER
    word = (word ^ word >> np.uint32(24)) * _MULTIPLIER
    return mixed * _MULTIPLIER ^ word
