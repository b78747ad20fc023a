"""Arrow columns into the records of batches, without a step of Python for each record.

A record is pieces in a row: numbers, key, numbers, value, headers. The numbers of all records are
written by numpy, and Arrow joins the pieces of each row; what comes out is one buffer in which the
records of a batch lie next to each other, as they will lie in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_riverrun.arrays import constant, is_valid, numbers, pieces, values_of
from pyspark_riverrun.partitioning import bounds_of
from pyspark_riverrun.varints import Integers, sizes_of, write_varints, zigzag

RECORD_OVERHEAD_BYTES: Final = 20
"""Of the numbers in a record, at most about: it decides where batches are cut, no more."""
JOINED_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Arrow's offsets have 32 bits; more than this is joined in two halves."""
_NOTHING: Final = constant(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Records for one batch of a partition, ready but for the batch's header."""

    partition: int
    count: int
    records: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The columns of what is to be written to one topic."""

    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None

    def take(self, order: npt.NDArray[np.int64]) -> Rows:
        indices = numbers(order, pa.int64())
        return Rows(
            key=None if self.key is None else self.key.take(indices),
            value=self.value.take(indices),
            headers=None if self.headers is None else self.headers.take(indices),
        )

    def slice(self, start: int, count: int) -> Rows:
        return Rows(
            key=None if self.key is None else self.key.slice(start, count),
            value=self.value.slice(start, count),
            headers=None if self.headers is None else self.headers.slice(start, count),
        )


def payloads(rows: Rows, partitions: npt.NDArray[np.int64], bytes_max: int) -> list[Payload]:
    """The rows in order for each partition, cut where a batch would grow too large."""
    if len(partitions) == 0:
        return []
    if not (partitions == partitions[0]).all():
        order = np.argsort(partitions, kind="stable")
        rows, partitions = rows.take(order), partitions[order]
    sizes = _sizes(rows)
    if int(sizes.sum()) > JOINED_BYTES_MAX and len(sizes) > 1:
        middle = len(sizes) // 2
        first = payloads(rows.slice(0, middle), partitions[:middle], bytes_max)
        rest = rows.slice(middle, len(sizes) - middle)
        return first + payloads(rest, partitions[middle:], bytes_max)
    cuts = _cuts(partitions, sizes, bytes_max)
    deltas = np.arange(len(sizes), dtype=np.int64) - np.repeat(cuts[:-1], np.diff(cuts))
    joined = _joined(rows, deltas)
    bounds = bounds_of(joined)
    data = memoryview(joined.buffers()[2])
    return [
        Payload(
            partition=int(partitions[start]),
            count=int(end - start),
            records=data[int(bounds[start]) : int(bounds[end])],
        )
        for start, end in pairwise(cuts)
    ]


def _sizes(rows: Rows) -> Integers:
    """About how many bytes each record will take."""
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


def _cuts(partitions: npt.NDArray[np.int64], sizes: Integers, bytes_max: int) -> Integers:
    """Where each batch begins, and the end."""
    total = np.cumsum(sizes)
    ends = np.append(np.flatnonzero(np.diff(partitions)) + 1, len(partitions))
    cuts = [0]
    for end in ends:
        while cuts[-1] < end:
            start = cuts[-1]
            before = int(total[start - 1]) if start else 0
            fits = int(np.searchsorted(total, before + bytes_max, side="right"))
            cuts.append(int(min(end, max(start + 1, fits))))
    return np.array(cuts, np.int64)


def _joined(rows: Rows, deltas: Integers) -> pa.Array:
    """Each row's record, whole."""
    count = len(deltas)
    value_sizes = _lengths(rows.value)
    key_sizes = np.full(count, -1, np.int64) if rows.key is None else _lengths(rows.key)
    key_marks, value_marks, order_marks = zigzag(key_sizes), zigzag(value_sizes), zigzag(deltas)
    key_widths, value_widths = sizes_of(key_marks), sizes_of(value_marks)
    order_widths = sizes_of(order_marks)
    # Attributes and the time, which is the batch's own, are a zero each.
    bodies = 2 + order_widths + key_widths + np.maximum(key_sizes, 0)
    bodies += value_widths + np.maximum(value_sizes, 0)
    tails, tail_sizes = _tails(rows.headers, count)
    bodies += tail_sizes
    body_marks = zigzag(bodies)
    body_widths = sizes_of(body_marks)

    ends = np.cumsum(body_widths + 2 + order_widths + key_widths)
    heads = np.zeros(int(ends[-1]), np.uint8)
    starts = np.append(0, ends)
    at = starts[:-1]
    write_varints(heads, at, body_marks, body_widths)
    at = at + body_widths + 2
    write_varints(heads, at, order_marks, order_widths)
    write_varints(heads, at + order_widths, key_marks, key_widths)

    parts = [pieces(heads, starts)]
    if rows.key is not None:
        parts.append(_binary(rows.key))
    parts += [_numbers(value_marks, value_widths), _binary(rows.value), *tails]
    return pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=""
    )


def _tails(headers: pa.Array | None, count: int) -> tuple[Sequence[pa.Array | pa.Scalar], Integers]:
    """The headers of each record with their number in front, and how many bytes that is."""
    if headers is None:
        return [constant(b"\x00")], np.ones(count, np.int64)
    names, values = _flat(headers)
    name_marks, value_marks = zigzag(_lengths(names)), zigzag(_lengths(values))
    each = pc.binary_join_element_wise(
        _numbers(name_marks, sizes_of(name_marks)),
        _binary(names),
        _numbers(value_marks, sizes_of(value_marks)),
        _binary(values),
        _NOTHING,
        null_handling="replace",
        null_replacement="",
    )
    bounds = _list_bounds(headers)
    count_marks = zigzag(np.diff(bounds))
    widths = sizes_of(count_marks)
    # Headers of one record are neighbours, so they are one piece without being copied again.
    each_bounds = bounds_of(each)[bounds]
    together = pieces(each.buffers()[2], each_bounds)
    return [_numbers(count_marks, widths), together], widths + np.diff(each_bounds)


def _flat(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    pairs = headers.flatten()
    return pairs.field(0), pairs.field(1)


def _list_bounds(headers: pa.Array) -> Integers:
    """Bounds of the lists within what ``flatten`` gives: it leaves out what nulls hide."""
    lengths = np.where(is_valid(headers), values_of(pc.list_value_length(headers)), 0)
    bounds = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _lengths(values: pa.Array) -> Integers:
    """-1 for null."""
    lengths = np.diff(bounds_of(values))
    if values.null_count:
        lengths = np.where(is_valid(values), lengths, -1)
    return lengths


def _binary(values: pa.Array) -> pa.Array:
    """Text is bytes, and Arrow need not look at it again."""
    return values if pa.types.is_binary(values.type) else values.cast(pa.binary())


def _numbers(marks: npt.NDArray[np.uint64], widths: Integers) -> pa.Array:
    starts = np.append(0, np.cumsum(widths))
    data = np.zeros(int(starts[-1]), np.uint8)
    write_varints(data, starts[:-1], marks, widths)
    return pieces(data, starts)
