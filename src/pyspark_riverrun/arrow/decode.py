"""Whole fetch responses into Arrow: many batches at once, no Python per record but a short walk.

Where a record begins is known only when the one before it has been measured. So the lengths are
walked over: of many small batches abreast, each step measures one record of all of them; of few
large ones in a plain loop, or in one stride where neighbours have equal lengths. All else is done
by numpy for all records of a response together: small batches cost no more than large ones.
The columns, nulls included, are those of Spark's own Kafka source. CRCs are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_riverrun.arrow.arrays import numbers, pieces
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
COLUMNS_WITH_HEADERS: Final = tuple(FIELDS)
MILLISECONDS_MAX: Final = (2**63 - 1) // 1000
"""Of a time in Spark, which counts microseconds."""
DECODED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of decompressed records that become one table, unless one batch has more: little enough to be
used again before it has left the processor's cache."""
RUN_MIN: Final = 32
"""Fewer records of one length in a row are not worth a look ahead."""
RUN_LONG: Final = 256
"""So many are worth an array of their own."""
RUN_MAX: Final = 4096
ABREAST_MIN: Final = 80
"""So many batches, on average over the steps, are walked sooner abreast than one by one."""

Header = tuple[int, BatchHeader]
"""Where a batch begins, and what it says of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The records of one fetch response, as they came."""

    data: Buffer
    headers: Sequence[Header]
    aborted: Sequence[tuple[int, int]] = ()
    """(producer id, first offset) of each aborted transaction; none with read_uncommitted."""
    position: int = 0
    """What was asked for: a fetch inside a batch brings the whole batch, also what is deleted."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, FIELDS[name]) for name in columns])


def to_arrow(
    records: Buffer | Portion,
    *,
    topic: str,
    partition: int,
    start: int,
    end: int,
    columns: Sequence[str] = COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """The records with offsets in [start, end), in order; raises CorruptBatch.

    Usually one table; more where little data decompresses to much.
    """
    if not isinstance(records, Portion):
        records = Portion(data=records, headers=list(batches(records)))
    start = max(start, records.position)
    wanted = [
        (at, header)
        for at, header in readable(records)
        if header.next_offset > start and header.base_offset < end
    ]
    place = _Place(topic, partition, start, end)
    for group in _payloads(records.data, wanted):
        table = _table(group, place, columns)
        if table.num_rows:
            yield table


def readable(portion: Portion) -> list[Header]:
    """All batches but those of control records and of aborted transactions (KIP-98)."""
    if not portion.aborted:
        return [(at, header) for at, header in portion.headers if not header.is_control]
    waiting = sorted(portion.aborted, key=lambda one: one[1])
    hidden: dict[int, None] = {}
    kept = []
    for at, header in portion.headers:
        while waiting and waiting[0][1] <= header.last_offset:
            hidden[waiting.pop(0)[0]] = None
        if header.is_control:
            if _is_abort(portion.data, at, header):
                hidden.pop(header.producer_id, None)
        elif not (header.is_transactional and header.producer_id in hidden):
            kept.append((at, header))
    return kept


def _is_abort(data: Buffer, at: int, header: BatchHeader) -> bool:
    records = read_records(memoryview(data)[at : at + header.size])
    return bool(records) and ControlType.of(records[0].key) is ControlType.ABORT


@dataclass(frozen=True, slots=True)
class _Place:
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
    """The records of all batches, decompressed; if none are compressed they stay in place."""
    view = memoryview(data)
    for at, header in wanted:
        if not crc_matches(data, at, header.size):
            raise CorruptBatch(f"the batch at offset {header.base_offset} fails its CRC")
    if all(header.compression == Compression.NONE for _, header in wanted):
        if wanted:
            places = [at + HEADER_BYTES for at, _ in wanted]
            yield _Payloads(data, places, [header for _, header in wanted])
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


def _table(group: _Payloads, place: _Place, columns: Sequence[str]) -> pa.RecordBatch:
    try:
        return _decode(group, place, columns)
    except IndexError:
        raise CorruptBatch("a record is cut short") from None


def _decode(group: _Payloads, place: _Place, columns: Sequence[str]) -> pa.RecordBatch:
    data = np.frombuffer(group.buffer, np.uint8)
    bodies = _walk(group.buffer, data, group.starts, [header.count for header in group.headers])
    counts = np.array([header.count for header in group.headers], np.int64)
    # Length, attributes, then the time: nothing reads the attributes, for none are in use.
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
                made[name] = numbers(np.full(total, place.partition, np.int32), FIELDS[name])
            case "offset":
                made[name] = numbers(offsets, FIELDS[name])
            case "timestamp":
                times = _times(group.headers, counts, time_deltas, first, last)
                # A time beyond what Spark can say would come out as some other one.
                micros = np.clip(times, -MILLISECONDS_MAX, MILLISECONDS_MAX) * 1000
                made[name] = numbers(micros, FIELDS[name])
            case "timestampType":
                kinds = np.array([h.has_log_append_time for h in group.headers], np.int32)
                made[name] = numbers(np.repeat(kinds, counts)[first:last], FIELDS[name])
            case "headers":
                after = value_at + np.maximum(value_sizes, 0)
                made[name] = _headers(raw, data, after)
            case _:
                raise ValueError(f"there is no column {name}")
    return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=schema_of(columns))


def _times(
    headers: Sequence[BatchHeader], counts: Integers, deltas: Integers, first: int, last: int
) -> Integers:
    """With LogAppendTime all records of a batch have the batch's time, whatever they say."""
    bases = [h.max_timestamp if h.has_log_append_time else h.base_timestamp for h in headers]
    times = np.repeat(np.array(bases, np.int64), counts)[first:last]
    if not any(header.has_log_append_time for header in headers):
        return times + deltas
    own = np.array([not header.has_log_append_time for header in headers], np.int64)
    return times + deltas * np.repeat(own, counts)[first:last]


def _walk(buffer: Buffer, data: Bytes, starts: Sequence[int], counts: Sequence[int]) -> Integers:
    """Where the body of each record begins, behind its length."""
    # All of them, or many batches that claim all of the buffer would be made room for.
    if min(counts) < 0 or sum(counts) > len(buffer) // RECORD_BYTES_MIN:
        raise CorruptBatch(f"{sum(counts)} records in {len(buffer)} bytes")
    if sum(counts) >= ABREAST_MIN * max(counts):
        return _walk_abreast(data, np.array(starts, np.int64), np.array(counts, np.int64))
    return _walk_in_turn(buffer, data, starts, counts)


def _walk_abreast(data: Bytes, starts: Integers, counts: Integers) -> Integers:
    """The first record of every batch, then the second of each that has one, and so on."""
    ends = np.cumsum(counts)
    found = np.zeros(int(ends[-1]), np.int64)
    order = np.argsort(-counts, kind="stable")
    counts = counts[order]
    at, places = starts[order], ends[order] - counts
    # With the longest in front, those that have an nth record are the first so many.
    for many in np.searchsorted(-counts, -np.arange(int(counts[0]))).tolist():
        sizes, at = read_varints(data, at[:many])
        places = places[:many]
        found[places] = at
        at += sizes
        places += 1
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) <= len(data):
        raise CorruptBatch("a record does not fit into its batch")
    return found


def _walk_in_turn(
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
                # Two of one size in a row: perhaps many are.
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
    """How many of the next records are exactly as long as the one at ``begin``."""
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
    """Pieces of a buffer as an array: what lies between them is a piece too, and is left out."""
    count = len(at)
    ends = at + np.maximum(sizes, 0)
    if count == 0:
        return pieces(b"", np.zeros(1, np.int32))
    # The size too, for an end beyond 64 bits would be before the start.
    if max(int(sizes.max()), int(ends.max())) > raw.size or int(sizes.min()) < -1:
        raise CorruptBatch("a key, value or header does not fit into its record")
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = at
    bounds[1::2] = ends
    if (bounds[1:] < bounds[:-1]).any():
        raise CorruptBatch("a record begins before the one in front of it has ended")
    chosen = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pieces(raw, bounds).take(numbers(chosen, pa.int32(), is_null=sizes < 0))


def _same_text(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    bounds = np.arange(0, (count + 1) * len(encoded), len(encoded), dtype=np.int32)[: count + 1]
    return pieces(encoded * count, bounds).view(pa.string())


def _headers(raw: pa.Buffer, data: Bytes, at: Integers) -> pa.Array:
    """Lists of headers; null for a record without any."""
    counts, at = read_varints(data, at)
    if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= len(data):
        raise CorruptBatch("a record cannot have so many headers")
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    name_at, name_sizes, value_at, value_sizes = (np.zeros(total, np.int64) for _ in range(4))
    turn = 0
    left = np.flatnonzero(counts > turn)
    while len(left):
        here = bounds[left] + turn
        name_sizes[here], name_at[here] = read_varints(data, at[left])
        behind = name_at[here] + np.maximum(name_sizes[here], 0)
        value_sizes[here], value_at[here] = read_varints(data, behind)
        at[left] = value_at[here] + np.maximum(value_sizes[here], 0)
        turn += 1
        left = left[counts[left] > turn]
    names = _binaries(raw, name_at, name_sizes)
    texts = pa.Array.from_buffers(pa.string(), total, names.buffers())
    values = _binaries(raw, value_at, value_sizes)
    pairs = pa.StructArray.from_arrays([texts, values], fields=list(HEADER_TYPE))
    is_null = counts == 0
    offsets = numbers(bounds.astype(np.int32), pa.int32(), is_null=np.append(is_null, False))
    lists = pa.ListArray.from_arrays(offsets, pairs)
    return lists.cast(FIELDS["headers"])
