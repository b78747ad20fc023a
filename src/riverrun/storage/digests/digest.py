"""The digest of a range of a log, in buckets, to compare two copies of a partition.

There are two kinds. Copies of a log that was never compacted hold the same batches: their digest is
a hash over the first bytes of each batch, which are its base offset, length, leader epoch, format
and CRC. Each replica compacts at its own times, so copies of a compacted log differ in their
batches. They agree in the last record of each key: ``key_digest`` has that kind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from riverrun.model.settings import MiB
from riverrun.ports.files import Files
from riverrun.records.batch import CorruptBatch
from riverrun.storage.digests.digest_task import (
    DIGEST_BYTES,
    DigestBucket,
    DigestTask,
    SegmentPlace,
    Throttle,
    batches_of,
)
from riverrun.storage.digests.key_digest import digest_keys

BUCKET_BYTES: Final = 4 * MiB
"""The size of a bucket. A difference is found to this precision."""
_DIGESTED_BYTES: Final = 21
"""Base offset (8), length (4), leader epoch (4), magic (1) and CRC (4)."""


def digest(files: Files, task: DigestTask, throttle: Throttle) -> Iterator[DigestBucket]:
    """The buckets of a task, in order. Raises ``DigestAborted`` and ``OSError``."""
    return (digest_keys if task.is_by_key else digest_batches)(files, task, throttle)


def digest_batches(files: Files, task: DigestTask, throttle: Throttle) -> Iterator[DigestBucket]:
    """The buckets of a range, in order. Raises ``DigestAborted`` and ``OSError``."""
    bounds = list(reversed(task.bounds or (task.end,)))
    is_bounded = bool(task.bounds)
    start, size, total = task.start, 0, 0
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    next_offset, place = task.start, task.place
    try:
        for base, position, header, view in batches_of(files, task, throttle):
            place = SegmentPlace(base_offset=base, position=position)
            if header.last_offset >= task.end:
                break
            while len(bounds) > 1 and header.last_offset >= bounds[-1]:
                bound = bounds.pop()
                yield DigestBucket(
                    start=start, end=bound, digest=found.digest(), size=size, place=place
                )
                start, size = bound, 0
                found = hashlib.blake2b(digest_size=DIGEST_BYTES)
            found.update(view[:_DIGESTED_BYTES])
            size += header.size
            total += header.size
            next_offset = header.next_offset
            if not is_bounded and size >= BUCKET_BYTES:
                place = SegmentPlace(base_offset=base, position=position + header.size)
                yield DigestBucket(
                    start=start, end=next_offset, digest=found.digest(), size=size, place=place
                )
                if 0 < task.bytes_max <= total:
                    return
                start, size = next_offset, 0
                found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    except CorruptBatch as error:
        yield DigestBucket(start=start, end=next_offset, digest=b"", size=size, damage=str(error))
        return
    while bounds:
        bound = bounds.pop()
        if bound > start:
            yield DigestBucket(
                start=start, end=bound, digest=found.digest(), size=size, place=place
            )
            start, size = bound, 0
            found = hashlib.blake2b(digest_size=DIGEST_BYTES)
