"""The digest of a compacted log: the last record of each key.

Compaction removes records that a later record of the same key supersedes, aborted records, and
tombstones some time after they have superseded the other records of their key. Each replica does
this at its own times. So what must agree in [start, end) is the last committed record of each key
that is not a tombstone, with its offset and content. The range begins at the log start offset and
ends at the high watermark: within a smaller range, one copy may still have a record that the other
lost to a record behind the range.

The latest offsets of the keys are in a table of bounded size. A log with more keys is read several
times, each time for a part of the keys. The digest is a sum, so that it does not depend on the
number of parts, which may differ between two copies.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Final

from riverrun.model.settings import MiB
from riverrun.ports.files import Files
from riverrun.records.batch import BatchHeader, CorruptBatch
from riverrun.records.record import Span, payload_of, spans
from riverrun.storage.cleaning.cleaned_transactions import CleanedTransactions
from riverrun.storage.cleaning.offset_map import OffsetMap
from riverrun.storage.digests.digest_task import (
    DIGEST_BYTES,
    DigestBucket,
    DigestTask,
    Throttle,
    batches_of,
)

MAP_BYTES_MAX: Final = 64 * MiB
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)


def digest_keys(
    files: Files, task: DigestTask, throttle: Throttle, *, map_bytes_max: int = MAP_BYTES_MAX
) -> Iterator[DigestBucket]:
    """One bucket for the whole range. Raises ``DigestAborted`` and ``OSError``."""
    capacity = OffsetMap.capacity_of(map_bytes_max)
    total, reached = 0, task.start
    try:
        keys_max = max(sum(part.next_offset - part.base_offset for part in task.segments), 1)
        if keys_max > capacity:
            # Compaction leaves gaps between the offsets, so count the records.
            batches = batches_of(files, task, throttle)
            keys_max = max(sum(header.count for _, _, header, _ in batches), 1)
        # Parts are not of equal size, so leave half of the table free.
        parts = 1 if keys_max <= capacity else -(-keys_max // max(capacity // 2, 1))
        for part in range(parts):
            latest = OffsetMap(min(keys_max, capacity))
            for header, payload, span in _records(files, task, throttle):
                key = payload[span[4] : span[4] + span[5]]
                if _is_in(key, part, parts):
                    latest.put(key, header.base_offset + span[3])
                reached = header.next_offset
            for header, payload, span in _records(files, task, throttle):
                key, offset = payload[span[4] : span[4] + span[5]], header.base_offset + span[3]
                if span[7] >= 0 and _is_in(key, part, parts) and latest.get(key) == offset:
                    total = (total + _hash(offset, payload, span)) % _MODULUS
    except CorruptBatch as error:
        yield DigestBucket(start=task.start, end=reached, digest=b"", size=0, damage=str(error))
        return
    yield DigestBucket(
        start=task.start,
        end=task.end,
        digest=total.to_bytes(DIGEST_BYTES, "big"),
        size=task.size_bytes,
    )


def _records(
    files: Files, task: DigestTask, throttle: Throttle
) -> Iterator[tuple[BatchHeader, bytes, Span]]:
    """The records with a key that were not aborted."""
    transactions = CleanedTransactions(task.aborted, task.start)
    for _, _, header, view in batches_of(files, task, throttle):
        if header.last_offset >= task.end:
            return
        if header.is_control:
            transactions.pass_marker(header, view)
        elif not transactions.pass_data(header):
            payload = payload_of(view, header)
            for span in spans(payload, header.count):
                if span[5] >= 0 and header.base_offset + span[3] >= task.start:
                    yield header, payload, span


def _is_in(key: bytes, part: int, parts: int) -> bool:
    if parts == 1:
        return True
    return zlib.crc32(key) % parts == part


def _hash(offset: int, payload: bytes, span: Span) -> int:
    """Of the offset, and of the key, the value and the headers with their lengths."""
    found = hashlib.blake2b(offset.to_bytes(8, "big"), digest_size=DIGEST_BYTES)
    found.update(span[5].to_bytes(8, "big", signed=True))
    found.update(payload[span[4] : span[1]])
    return int.from_bytes(found.digest(), "big")
