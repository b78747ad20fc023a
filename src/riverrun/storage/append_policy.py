"""Appending: the limits for batches, when a log rolls, and validation of replicated batches.

Batches of clients are validated by ``records.validate``, with the limits of ``AppendPolicy``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from riverrun.model.ids import Offset
from riverrun.ports.files import Buffer
from riverrun.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_MIN,
    MAGIC,
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptBatch,
    check_remainder,
)
from riverrun.records.compression import Compression
from riverrun.records.validate import Limits
from riverrun.storage.producers import KnownBatch
from riverrun.storage.segment.index import OFFSETS_SPAN_MAX
from riverrun.storage.segment.segment import Segment
from riverrun.storage.settings import LogSettings

_unpack = HEADER.unpack_from
_make = tuple.__new__


class Appended(NamedTuple):
    """The offsets that a batch got."""

    base_offset: Offset
    last_offset: Offset
    append_time_ms: int
    """-1 unless the topic uses LogAppendTime."""
    is_duplicate: bool = False
    size_bytes: int = 0
    """Set by follower appends, which may append several batches."""


def duplicate_of(batch: KnownBatch) -> Appended:
    """The result for a retry. It has a timestamp for both timestamp types, as in Kafka."""
    first, last = Offset(batch.first_offset), Offset(batch.last_offset)
    return Appended(first, last, batch.timestamp, is_duplicate=True)


class AppendPolicy:
    """The settings of a topic that decide what may be appended, and when a log rolls.

    Derived once from the settings, because it is read for every batch.
    """

    __slots__ = ("_segment_age_max_ms", "_segment_bytes_max", "has_log_append_time", "limits")

    def __init__(self, settings: LogSettings, jitter: float) -> None:
        """``jitter`` from 0 to 1 spreads the rolls of logs that were created together."""
        age_max_ms = settings.segment_ms
        if settings.is_compacted:
            age_max_ms = min(age_max_ms, settings.max_compaction_lag_ms)  # KIP-354
        jitter_ms = min(settings.segment_jitter_ms, age_max_ms)
        self._segment_age_max_ms = age_max_ms - int(jitter * jitter_ms)
        self._segment_bytes_max = settings.segment_bytes
        self.has_log_append_time = settings.has_log_append_time
        self.limits = _limits_of(settings)

    def must_roll(
        self, segment: Segment, size: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        """Whether a batch belongs in a new segment. An empty segment takes any batch.

        Age counts by the records' timestamps, as in Kafka, so that all replicas roll at the same
        batch.
        """
        if not segment.size:
            return False
        if (
            segment.size + size > self._segment_bytes_max
            or last_offset > segment.offset_max
            or segment.is_full
        ):
            return True
        first = segment.first_timestamp
        if first is not None and first >= 0:
            return timestamp - first > self._segment_age_max_ms
        return now_ms - segment.created_ms > self._segment_age_max_ms

    def is_too_old(self, segment: Segment, now_ms: int) -> bool:
        """Whether a segment is to be closed though nothing is appended."""
        if segment.size == 0:
            return False
        first = segment.first_timestamp
        begun = first if first is not None and first >= 0 else segment.created_ms
        return now_ms - begun > self._segment_age_max_ms


def _limits_of(settings: LogSettings) -> Limits:
    codec = settings.compression_type
    level = {
        "gzip": settings.compression_gzip_level,
        "lz4": settings.compression_lz4_level,
        "zstd": settings.compression_zstd_level,
    }.get(codec)
    by_name = {"uncompressed": Compression.NONE, "producer": None}
    return Limits(
        bytes_max=settings.max_message_bytes,
        timestamp_before_max_ms=settings.timestamp_before_max_ms,
        timestamp_after_max_ms=settings.timestamp_after_max_ms,
        is_compacted=settings.is_compacted,
        compression=by_name[codec] if codec in by_name else Compression[codec.upper()],
        level=level,
        log_append_time=settings.has_log_append_time,
    )


class ReceivedBatches(NamedTuple):
    """Checked batches that can be appended to one segment together."""

    headers: list[BatchHeader]
    size_bytes: int
    newest_timestamp: int


def validate_received(
    data: Buffer, expected: int, epoch_max: int, batches_max: int, bytes_max: int
) -> ReceivedBatches:
    """Validate the batches of a leader, which start at offset ``expected`` or later.

    Stops before a batch that exceeds a limit or the offset range of one index, but returns at least
    one batch; stops before an epoch above ``epoch_max``, even at the first. Checks every CRC,
    because appended batches are trusted from then on. Raises ``CorruptBatch``. This runs for every
    replicated batch, so it reads each header once and allocates little.
    """
    view = memoryview(data)
    end = len(view)
    found: list[BatchHeader] = []
    at, span_end, newest = 0, 0, -1
    while end - at >= HEADER_BYTES:
        try:
            header: BatchHeader = _make(BatchHeader, _unpack(view, at))
        except struct.error as error:
            raise CorruptBatch(f"no batch at {at}: {error}") from None
        base, length, epoch, magic, crc, _, delta, _, timestamp, _, _, _, _ = header
        if length < LENGTH_MIN or magic != MAGIC:
            raise CorruptBatch(f"no batch at {at}: length {length}, magic {magic}")
        stop = at + length + OVERHEAD_BYTES
        if stop > end:
            return ReceivedBatches(found, at, newest)
        if base < expected or delta < 0:
            raise CorruptBatch(f"offset {base} where {expected} is next")
        if not found:
            span_end = base + OFFSETS_SPAN_MAX
        elif stop > bytes_max or base + delta > span_end or len(found) >= batches_max:
            return ReceivedBatches(found, at, newest)
        if epoch > epoch_max:
            return ReceivedBatches(found, at, newest)
        if crc32c(view[at + CRC_START : stop]) != crc:
            raise CorruptBatch(f"the batch at {at} does not match its CRC")
        found.append(header)
        newest = max(newest, timestamp)
        expected = base + delta + 1
        at = stop
    check_remainder(view, at)
    return ReceivedBatches(found, at, newest)
