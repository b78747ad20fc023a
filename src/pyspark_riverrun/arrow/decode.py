"""Decodes whole fetch responses into Arrow, many batches at once.

The start of a record is known only after the length of the previous one is read, so the lengths
need a walk. Many small batches are walked in parallel: each step reads one length in every batch.
A few large batches are walked in a loop, with strides over runs of records of equal length. Numpy
does the rest for all records of a response together, so small batches cost no more than large ones.

The columns, including nulls, are those of Spark's Kafka source. CRCs are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_riverrun.arrow.arrays import binary_slices, integer_array
from pyspark_riverrun.arrow.varints import Bytes, Integers, read_varints
from riverrun.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatch,
    batches,
    crc_matches,
)
from riverrun.records.compression import Compression, decompress
from riverrun.records.record import RECORD_BYTES_MIN, ControlType, read_records

HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
FIELDS: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}
COLUMNS: Final = tuple(name for name in FIELDS if name != "headers")
MILLISECONDS_MAX: Final = (2**63 - 1) // 1000
"""Spark stores timestamps as 64-bit microseconds."""
DECODED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Decompressed records per table, unless one batch has more. Small enough for the CPU cache."""
RUN_MIN: Final = 32
"""Minimum run of equal record lengths for which a vectorised search pays off."""
RUN_LONG: Final = 256
"""Runs of at least this length become an array of their own."""
RUN_MAX: Final = 4096
PARALLEL_MIN: Final = 80
"""Above this many batches, on average over the steps, the parallel walk is faster."""

Header = tuple[int, BatchHeader]
"""The position of a batch, and its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """The record batches of one fetch response."""

    data: Buffer
    headers: Sequence[Header]
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset) of each aborted transaction; empty with read_uncommitted."""
    position: int = 0
    """The requested offset. The first batch may start before it."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, FIELDS[name]) for name in columns])


def to_arrow(
    records: Buffer | FetchedBatches,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int,
    columns: Sequence[str] = COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in [start, end), in order. Raises CorruptBatch.

    Yields one table, or more if the decompressed records are large.
    """
    if not isinstance(records, FetchedBatches):
        records = FetchedBatches(data=records, headers=list(batches(records)))
    start = max(start, records.position)
    wanted = [
        (at, header)
        for at, header in readable(records)
        if header.next_offset > start and header.base_offset < end
    ]
    place = _ReadRange(topic, partition, start, end)
    for group in _payloads(records.data, wanted):
        table = _table(group, place, columns)
        if table.num_rows:
            yield table


def readable(fetched: FetchedBatches) -> list[Header]:
    """All batches except control batches and those of aborted transactions (KIP-98)."""
    if not fetched.aborted:
        return [(at, header) for at, header in fetched.headers if not header.is_control]
    pending = sorted(fetched.aborted, key=lambda one: one[1])
    hidden: dict[int, None] = {}
    kept = []
    for at, header in fetched.headers:
        while pending and pending[0][1] <= header.last_offset:
            hidden[pending.pop(0)[0]] = None
        if header.is_control:
            if _is_abort(fetched.data, at, header):
                hidden.pop(header.producer_id, None)
        elif not (header.is_transactional and header.producer_id in hidden):
            kept.append((at, header))
    return kept


def _is_abort(data: Buffer, at: int, header: BatchHeader) -> bool:
    records = read_records(memoryview(data)[at : at + header.size])
    return bool(records) and ControlType.of(records[0].key) is ControlType.ABORT


@dataclass(frozen=True, slots=True)
class _ReadRange:
    topic: str
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class _Payloads:
    """Records of several batches in one buffer."""

    buffer: Buffer
    starts: list[int]
    headers: list[BatchHeader]


def _payloads(data: Buffer, wanted: Sequence[Header]) -> Iterator[_Payloads]:
    """The decompressed records of all batches. Without compression they are not copied."""
    view = memoryview(data)
    for at, header in wanted:
        if not crc_matches(data, at, header.size):
            raise CorruptBatch(f"the batch at offset {header.base_offset} fails its CRC")
    if all(header.compression == Compression.NONE for _, header in wanted):
        if wanted:
            positions = [at + HEADER_BYTES for at, _ in wanted]
            yield _Payloads(data, positions, [header for _, header in wanted])
        return
    starts: list[int] = []
    headers: list[BatchHeader] = []
    parts: list[Buffer] = []
    size = 0
    for at, header in wanted:
        if header.compression > Compression.ZSTD:
            raise CorruptBatch(f"unknown compression {header.compression}")
        part: Buffer = view[at + HEADER_BYTES : at + header.size]
        if header.compression != Compression.NONE:
            part = decompress(Compression(header.compression), part)
        if parts and size + len(part) > DECODED_BYTES_MAX:
            yield _Payloads(b"".join(parts), starts, headers)
            starts, headers, parts, size = [], [], [], 0
        starts.append(size)
        headers.append(header)
        parts.append(part)
        size += len(part)
    if parts:
        yield _Payloads(b"".join(parts) if len(parts) > 1 else parts[0], starts, headers)


def _table(group: _Payloads, place: _ReadRange, columns: Sequence[str]) -> pa.RecordBatch:
    try:
        return _decode(group, place, columns)
    except IndexError:
        raise CorruptBatch("a record is truncated") from None


def _decode(group: _Payloads, place: _ReadRange, columns: Sequence[str]) -> pa.RecordBatch:
    data = np.frombuffer(group.buffer, np.uint8)
    bodies = _walk(group.buffer, data, group.starts, [header.count for header in group.headers])
    counts = np.array([header.count for header in group.headers], np.int64)
    # Skip the attributes, which are unused, to the timestamp delta.
    time_deltas, at = read_varints(data, bodies + 1)
    offset_deltas, at = read_varints(data, at)
    bases = np.array([header.base_offset for header in group.headers], np.int64)
    offsets = np.repeat(bases, counts) + offset_deltas
    first, last = 0, len(offsets)
    if last and (offsets[0] < place.start or offsets[-1] >= place.end):
        first, last = (int(n) for n in np.searchsorted(offsets, (place.start, place.end)))
        at, offsets, time_deltas = at[first:last], offsets[first:last], time_deltas[first:last]
    total = last - first
    key_sizes, key_at = read_varints(data, at)
    value_sizes, value_at = read_varints(data, key_at + np.maximum(key_sizes, 0))
    raw = pa.py_buffer(group.buffer)
    made: dict[str, pa.Array] = {}
    for name in columns:
        match name:
            case "key":
                made[name] = _binaries(raw, key_at, key_sizes)
            case "value":
                made[name] = _binaries(raw, value_at, value_sizes)
            case "topic":
                made[name] = _same_text(place.topic, total)
            case "partition":
                made[name] = integer_array(np.full(total, place.partition, np.int32), FIELDS[name])
            case "offset":
                made[name] = integer_array(offsets, FIELDS[name])
            case "timestamp":
                times = _times(group.headers, counts, time_deltas, first, last)
                # A larger timestamp would overflow.
                micros = np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000
                made[name] = integer_array(micros, FIELDS[name])
            case "timestampType":
                kinds = np.array([h.has_log_append_time for h in group.headers], np.int32)
                made[name] = integer_array(np.repeat(kinds, counts)[first:last], FIELDS[name])
            case "headers":
                after = value_at + np.maximum(value_sizes, 0)
                made[name] = _headers(raw, data, after)
            case _:
                raise ValueError(f"there is no column {name}")
    return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=schema_of(columns))


def _times(
    headers: Sequence[BatchHeader], counts: Integers, deltas: Integers, first: int, last: int
) -> Integers:
    """With LogAppendTime all records of a batch have the timestamp of the batch."""
    bases = [h.max_timestamp if h.has_log_append_time else h.base_timestamp for h in headers]
    times = np.repeat(np.array(bases, np.int64), counts)[first:last]
    if not any(header.has_log_append_time for header in headers):
        return times + deltas
    own = np.array([not header.has_log_append_time for header in headers], np.int64)
    return times + deltas * np.repeat(own, counts)[first:last]


def _walk(buffer: Buffer, data: Bytes, starts: Sequence[int], counts: Sequence[int]) -> Integers:
    """The position of each record's body, after its length."""
    # Check the sum, so that corrupt counts cannot allocate too much memory.
    if min(counts) < 0 or sum(counts) > len(buffer) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{sum(counts)} records in {len(buffer)} bytes")
    if sum(counts) >= PARALLEL_MIN * max(counts):
        return _walk_in_parallel(data, np.array(starts, np.int64), np.array(counts, np.int64))
    return _walk_in_loop(buffer, data, starts, counts)


def _walk_in_parallel(data: Bytes, starts: Integers, counts: Integers) -> Integers:
    """The first record of every batch, then the second of every batch that has one, and so on."""
    ends = np.cumsum(counts)
    found = np.zeros(int(ends[-1]), np.int64)
    order = np.argsort(-counts, kind="stable")
    counts = counts[order]
    at, places = starts[order], ends[order] - counts
    # Batches are sorted by length, so those with an nth record form a prefix.
    for many in np.searchsorted(-counts, -np.arange(int(counts[0]))).tolist():
        sizes, at = read_varints(data, at[:many])
        places = places[:many]
        found[places] = at
        at += sizes
        places += 1
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) <= len(data):
        raise CorruptBatch("a record exceeds its batch")
    return found


def _walk_in_loop(
    buffer: Buffer, data: Bytes, starts: Sequence[int], counts: Sequence[int]
) -> Integers:
    parts: list[Integers] = []
    found: list[int] = []
    add = found.append
    for start, count in zip(starts, counts, strict=True):
        at = start
        left = count
        stride = 0
        patience = 0
        while left:
            begin = at
            byte = buffer[at]
            at += 1
            size = byte & 0x7F
            shift = 7
            while byte > 0x7F:
                byte = buffer[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
            add(at)
            at += size >> 1
            left -= 1
            if at - begin != stride:
                stride = at - begin
            elif patience:
                patience -= 1
            elif left > RUN_MIN:
                # Two records of one size in a row. There may be many.
                width = stride - (size >> 1)
                equal = _equal_run(data, begin, stride, width, min(left, RUN_MAX))
                if equal < RUN_MIN:
                    patience = RUN_MIN
                end = at + equal * stride
                if equal < RUN_LONG:
                    found += range(at + width, end + width, stride)
                else:
                    parts.append(np.array(found, np.int64))
                    found.clear()
                    parts.append(np.arange(at + width, end + width, stride, dtype=np.int64))
                at = end
                left -= equal
    parts.append(np.array(found, np.int64))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _equal_run(data: Bytes, begin: int, stride: int, width: int, limit: int) -> int:
    """The number of following records with the same length as the one at ``begin``."""
    limit = min(limit, (len(data) - begin - width) // stride)
    if limit <= 0:
        return 0
    first = begin + stride
    is_equal = data[first : first + (limit - 1) * stride + 1 : stride] == data[begin]
    for place in range(1, width):
        at = first + place
        is_equal &= data[at : at + (limit - 1) * stride + 1 : stride] == data[begin + place]
    stop = int(is_equal.argmin())
    return limit if is_equal[stop] else stop


def _binaries(raw: pa.Buffer, at: Integers, sizes: Integers) -> pa.Array:
    """A binary array over spans of a buffer. The gaps are slices that are not taken."""
    count = len(at)
    ends = at + np.maximum(sizes, 0)
    if count == 0:
        return binary_slices(b"", np.zeros(1, np.int32))
    # Check the size too, because an end beyond 64 bits would wrap around.
    if max(int(sizes.max()), int(ends.max())) > raw.size or int(sizes.min()) < -1:
        raise CorruptBatch("a key, value or header exceeds its record")
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = at
    bounds[1::2] = ends
    if (bounds[1:] < bounds[:-1]).any():
        raise CorruptBatch("a record starts before the end of the previous one")
    chosen = np.arange(0, 2 * count, 2, dtype=np.int32)
    return binary_slices(raw, bounds).take(integer_array(chosen, pa.int32(), is_null=sizes < 0))


def _same_text(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    bounds = np.arange(0, (count + 1) * len(encoded), len(encoded), dtype=np.int32)[: count + 1]
    return binary_slices(encoded * count, bounds).view(pa.string())


def _headers(raw: pa.Buffer, data: Bytes, at: Integers) -> pa.Array:
    """Lists of headers; null for a record without headers."""
    counts, at = read_varints(data, at)
    if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= len(data):
        raise CorruptBatch("a record has an impossible number of headers")
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    name_at, name_sizes, value_at, value_sizes = (np.zeros(total, np.int64) for _ in range(4))
    index = 0
    left = np.flatnonzero(counts > index)
    while len(left):
        here = bounds[left] + index
        name_sizes[here], name_at[here] = read_varints(data, at[left])
        after = name_at[here] + np.maximum(name_sizes[here], 0)
        value_sizes[here], value_at[here] = read_varints(data, after)
        at[left] = value_at[here] + np.maximum(value_sizes[here], 0)
        index += 1
        left = left[counts[left] > index]
    names = _binaries(raw, name_at, name_sizes)
    texts = pa.Array.from_buffers(pa.string(), total, names.buffers())
    values = _binaries(raw, value_at, value_sizes)
    pairs = pa.StructArray.from_arrays([texts, values], fields=list(HEADER_TYPE))
    is_null = counts == 0
    offsets = integer_array(bounds.astype(np.int32), pa.int32(), is_null=np.append(is_null, False))
    lists = pa.ListArray.from_arrays(offsets, pairs)
    return lists.cast(FIELDS["headers"])
