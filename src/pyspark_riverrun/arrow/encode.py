"""Encodes Arrow columns as records of batches, without Python code per record.

A record is a sequence of varints, key, varints, value and headers. Numpy writes the varints of all
records, and ``byte_join`` joins the parts of each row. The result is one buffer with the records of
each batch next to each other, in the format of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_riverrun.arrow.arrays import int32_values, is_valid
from pyspark_riverrun.arrow.byte_join import INLINE_BYTES_MAX, ByteSpans, VarintColumn, join_rows
from pyspark_riverrun.arrow.varints import Integers, sizes_of, zigzag
from pyspark_riverrun.writing.partitioning import bounds_of

RECORD_OVERHEAD_BYTES: Final = 20
"""Estimated size of the varints in a record. Used only to choose the end of a batch."""
JOINED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Arrow's offsets have 32 bits, so larger inputs are split in two."""


@dataclass(slots=True, kw_only=True)
class Block:
    """Memory shared by several payloads. It is released with the last of them."""

    size: int
    left: int
    is_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The records of one batch, without the batch header."""

    partition: int
    count: int
    records: memoryview
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The columns to write to one topic."""

    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None

    def slice(self, start: int, count: int) -> Rows:
        return Rows(
            key=None if self.key is None else self.key.slice(start, count),
            value=self.value.slice(start, count),
            headers=None if self.headers is None else self.headers.slice(start, count),
        )


def payloads(rows: Rows, partitions: npt.NDArray[np.int64], bytes_max: int) -> list[Payload]:
    """Batches for each partition, in row order, limited to about ``bytes_max``."""
    count = len(partitions)
    if count == 0:
        return []
    sizes = _sizes(rows)
    if int(sizes.sum()) > JOINED_BYTES_MAX and count > 1:
        middle = count // 2
        first = payloads(rows.slice(0, middle), partitions[:middle], bytes_max)
        rest = rows.slice(middle, count - middle)
        return first + payloads(rest, partitions[middle:], bytes_max)
    order: Integers | None = None
    if not (partitions == partitions[0]).all():
        order = _order(partitions)
        partitions, sizes = partitions[order], sizes[order]
    cuts = _cuts(partitions, sizes, bytes_max)
    data, bounds = _records(rows, order, cuts)
    block = Block(size=len(data), left=len(cuts) - 1)
    return [
        Payload(
            block=block,
            partition=int(partitions[start]),
            count=end - start,
            records=data[bounds[number] : bounds[number + 1]],
        )
        for number, (start, end) in enumerate(pairwise(cuts))
    ]


def _order(partitions: npt.NDArray[np.int64]) -> Integers:
    """Row indexes sorted by partition. Numpy sorts 16-bit integers several times faster."""
    is_short = int(partitions.max()) < 2**15
    return np.argsort(partitions.astype(np.int16) if is_short else partitions, kind="stable")


def _sizes(rows: Rows) -> Integers:
    """The estimated size of each record in bytes."""
    sizes = np.diff(bounds_of(rows.value)) + RECORD_OVERHEAD_BYTES
    if rows.key is not None:
        sizes += np.diff(bounds_of(rows.key))
    if rows.headers is not None:
        names, values = _flat(rows.headers)
        each = np.zeros(len(names) + 1, np.int64)
        lengths = np.diff(bounds_of(names)) + np.diff(bounds_of(values)) + 10
        np.cumsum(lengths, out=each[1:])
        bounds = _list_bounds(rows.headers)
        sizes += each[bounds[1:]] - each[bounds[:-1]]
    return sizes


def _cuts(partitions: npt.NDArray[np.int64], sizes: Integers, bytes_max: int) -> list[int]:
    """The first row of each batch, and the number of rows."""
    total = np.cumsum(sizes).data
    ends = np.append(np.flatnonzero(np.diff(partitions)) + 1, len(partitions))
    cuts = [0]
    start, count, before = 0, 0, 0
    for end in ends.tolist():
        while start < end:
            # Most batches have about as many records as the previous one, so search there first.
            near = min(end, start + 2 * count + 1)
            reach = near if total[near - 1] > before + bytes_max else end
            fits = bisect_right(total, before + bytes_max, start, reach)
            count = max(1, fits - start)
            start += count
            before = total[start - 1]
            cuts.append(start)
    return cuts


def _records(
    rows: Rows, order: Integers | None, cuts: Sequence[int]
) -> tuple[memoryview, list[int]]:
    """All records as bytes, and the batch boundaries in them (starts and the end)."""
    starts = np.array(cuts, np.int64)
    count = cuts[-1]
    deltas = np.arange(count, dtype=np.int64) - np.repeat(starts[:-1], np.diff(starts))
    value = _spans(rows.value, order)
    key = None if rows.key is None else _spans(rows.key, order)
    tail, tail_sizes = _tail(rows.headers, order, count)
    key_sizes = np.full(count, -1, np.int64) if key is None else key.sizes
    delta_varints, delta_widths = _varints(deltas)
    key_varints, key_widths = _varints(key_sizes)
    value_varints, value_widths = _varints(value.sizes)
    # Attributes and the timestamp delta are one zero byte each.
    bodies = 2 + delta_widths + key_widths + np.maximum(key_sizes, 0)
    bodies += value_widths + np.maximum(value.sizes, 0) + tail_sizes
    body_varints, body_widths = _varints(bodies)

    head = VarintColumn(count)
    head.put(body_varints, body_widths)
    head.skip(2)
    head.put(delta_varints, delta_widths)
    parts: list[ByteSpans | VarintColumn] = [head]
    # Varints share a view while they fit, because each view costs time.
    if head.longest + int(key_widths.max()) > INLINE_BYTES_MAX:
        head = VarintColumn(count)
        parts.append(head)
    head.put(key_varints, key_widths)
    if key is not None:
        parts.append(key)
    if key is not None or head.longest + int(value_widths.max()) > INLINE_BYTES_MAX:
        head = VarintColumn(count)
        parts.append(head)
    head.put(value_varints, value_widths)
    parts += [value, *tail]

    ends = np.zeros(count + 1, np.int64)
    np.cumsum(body_widths + bodies, out=ends[1:])
    data = memoryview(join_rows(parts))
    assert len(data) == ends[-1], f"{len(data)} bytes of records, expected {ends[-1]}"
    return data, ends[starts].tolist()


def _spans(values: pa.Array, order: Integers | None) -> ByteSpans:
    spans = ByteSpans.of(values)
    return spans if order is None else spans.take(order)


def _varints(values: Integers) -> tuple[npt.NDArray[np.uint64], Integers]:
    marks = zigzag(values)
    return marks, sizes_of(marks)


def _tail(
    headers: pa.Array | None, order: Integers | None, count: int
) -> tuple[list[ByteSpans | VarintColumn], Integers]:
    """The header count and headers of each record, and their size in bytes."""
    number = VarintColumn(count)
    if headers is None:
        number.skip(1)
        return [number], number.sizes
    bounds = _list_bounds(headers)
    data, ends = _headers(headers)
    # The headers of one record are adjacent, so they are one span.
    together = ByteSpans.between(data, ends[bounds], np.diff(ends[bounds]))
    counts = np.diff(bounds)
    if order is not None:
        together, counts = together.take(order), counts[order]
    number.put(*_varints(counts))
    return [number, together], number.sizes + together.sizes


def _headers(headers: pa.Array) -> tuple[pa.Buffer | None, Integers]:
    """All headers as bytes, and the header boundaries in them (starts and the end)."""
    names, values = (ByteSpans.of(column) for column in _flat(headers))
    count = len(names.sizes)
    ends = np.zeros(count + 1, np.int64)
    if count == 0:
        return None, ends
    name_size, value_size = VarintColumn(count), VarintColumn(count)
    name_size.put(*_varints(names.sizes))
    value_size.put(*_varints(values.sizes))
    sizes = name_size.sizes + np.maximum(names.sizes, 0)
    sizes += value_size.sizes + np.maximum(values.sizes, 0)
    np.cumsum(sizes, out=ends[1:])
    return join_rows([name_size, names, value_size, values]), ends


def _flat(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    pairs = headers.flatten()
    return pairs.field(0), pairs.field(1)


def _list_bounds(headers: pa.Array) -> Integers:
    """Bounds of the lists in the result of ``flatten``, which omits values under nulls."""
    lengths = np.where(is_valid(headers), int32_values(pc.list_value_length(headers)), 0)
    bounds = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds
