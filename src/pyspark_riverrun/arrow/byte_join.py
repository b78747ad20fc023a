"""Joins the bytes of several columns row by row, in one pass of Arrow.

An Arrow ``binary_view`` points to bytes in a buffer, or contains them if they are short. Numpy
writes the views of all columns in row order, and Arrow's cast to plain binary copies each span once
to its final place. Reordering rows costs nothing extra. pyarrow 18 cannot create views over foreign
memory; there Arrow takes and joins columns in two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_riverrun.arrow.arrays import binary_slices, integer_array, is_valid
from pyspark_riverrun.arrow.varints import Integers
from pyspark_riverrun.writing.partitioning import bounds_of

Marks = npt.NDArray[np.uint64]

INLINE_BYTES_MAX: Final = 12
"""Views contain spans up to this size and point to longer ones (Arrow's columnar format)."""
_VIEW: Final = np.dtype([("size", "<i4"), ("low", "<u8"), ("high", "<u4")])
_LONG_VIEW: Final = np.dtype([("size", "<i4"), ("prefix", "<u4"), ("buffer", "<u4"), ("at", "<u4")])
_WORD: Final = np.dtype("<u4")
_BITS: Final = np.uint64(8)
_CONTINUED: Final = np.array([0, 0, 0x80, 0x8080, 0x808080, 0x80808080], np.uint64)
"""Continuation bits by the size of a varint: set in all bytes but the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteSpans:
    """One span of a buffer per row. The size of a null is -1."""

    data: pa.Buffer | None
    starts: Integers
    sizes: Integers

    @classmethod
    def of(cls, values: pa.Array) -> ByteSpans:
        """The values of a binary or string column."""
        bounds = bounds_of(values)
        sizes = np.diff(bounds)
        if values.null_count:
            sizes = np.where(is_valid(values), sizes, -1)
        return cls.between(values.buffers()[2], bounds, sizes)

    @classmethod
    def between(cls, data: pa.Buffer | None, bounds: Integers, sizes: Integers) -> ByteSpans:
        """Adjacent spans that start at these bounds."""
        first, end = int(bounds[0]), int(bounds[-1])
        # Positions in views have 32 bits, so they are relative to the first span.
        held = None if data is None or end == first else data.slice(first, end - first)
        return cls(data=held, starts=bounds[:-1] - first, sizes=sizes)

    def take(self, order: Integers) -> ByteSpans:
        return ByteSpans(data=self.data, starts=self.starts[order], sizes=self.sizes[order])


class VarintColumn:
    """Consecutive varints per row, at most 12 bytes together."""

    def __init__(self, count: int) -> None:
        self.low = np.zeros(count, np.uint64)
        self.high = np.zeros(count, np.uint64)
        self.sizes = np.zeros(count, np.int64)

    def put(self, zigzagged: Marks, sizes: Integers) -> None:
        """Append a varint to each row. Sizes and counts in a batch have at most 5 bytes."""
        digits = zigzagged & np.uint64(0x7F)
        longest = int(sizes.max())
        assert longest <= 5, f"a varint of {longest} bytes"
        for place in range(1, longest):
            # Each byte holds seven bits of the number.
            part = zigzagged >> np.uint64(7 * place) & np.uint64(0x7F)
            digits |= part << np.uint64(8 * place)
        if longest > 1:
            digits |= _CONTINUED[sizes]
        at = self.sizes.view(np.uint64) * _BITS
        self.low |= digits << at
        if int(self.sizes.max()) + longest > 8:
            # In numpy a shift by 64 or more gives 0 in both directions.
            self.high |= np.where(
                at < np.uint64(64), digits >> (np.uint64(64) - at), digits << (at - np.uint64(64))
            )
        self.sizes += sizes

    def skip(self, size: int) -> None:
        """Append ``size`` zero bytes to each row."""
        self.sizes += size

    @property
    def longest(self) -> int:
        return int(self.sizes.max())


def _supports_views() -> bool:
    one = np.array([(13, 0, 0, 0)], _LONG_VIEW)
    try:
        pa.Array.from_buffers(
            pa.binary_view(), 1, [None, pa.py_buffer(one), pa.py_buffer(bytes(13))]
        )
    except ValueError:
        return False
    return True


SUPPORTS_VIEWS: Final = _supports_views()


def join_rows(parts: Sequence[ByteSpans | VarintColumn]) -> pa.Buffer:
    """The bytes of all parts of the first row, then of the second, and so on."""
    return join_by_views(parts) if SUPPORTS_VIEWS else join_by_columns(parts)


def join_by_columns(parts: Sequence[ByteSpans | VarintColumn]) -> pa.Buffer:
    columns = [_held(part) if isinstance(part, VarintColumn) else _taken(part) for part in parts]
    nothing = binary_slices(b"", np.zeros(2, np.int32))[0]
    return pc.binary_join_element_wise(*columns, nothing).buffers()[2]


def _held(part: VarintColumn) -> pa.Array:
    count = len(part.sizes)
    held = np.zeros((count, INLINE_BYTES_MAX), np.uint8)
    held[:, :8] = part.low.astype("<u8").view(np.uint8).reshape(count, 8)
    held[:, 8:] = part.high.astype("<u4").view(np.uint8).reshape(count, 4)
    bounds = np.append(0, np.cumsum(part.sizes))
    return binary_slices(held[np.arange(INLINE_BYTES_MAX) < part.sizes[:, None]], bounds)


def _taken(part: ByteSpans) -> pa.Array:
    """Slice the buffer into spans and the gaps between them, and take the spans."""
    count = len(part.sizes)
    if part.data is None:
        return binary_slices(b"", np.zeros(count + 1, np.int32))
    sizes = np.maximum(part.sizes, 0)
    by_place = np.lexsort((sizes, part.starts))
    bounds = np.empty(2 * count, np.int64)
    bounds[::2] = part.starts[by_place]
    bounds[1::2] = bounds[::2] + sizes[by_place]
    places = np.empty(count, np.int64)
    places[by_place] = np.arange(count) * 2
    return binary_slices(part.data, bounds).take(integer_array(places, pa.int64()))


def join_by_views(parts: Sequence[ByteSpans | VarintColumn]) -> pa.Buffer:
    count = len(parts[0].sizes)
    memory = pa.allocate_buffer(count * len(parts) * _VIEW.itemsize)
    views = np.frombuffer(memory, _VIEW).reshape(count, len(parts))
    buffers: list[pa.Buffer] = []
    for number, part in enumerate(parts):
        column = views[:, number]
        if isinstance(part, VarintColumn):
            assert part.longest <= INLINE_BYTES_MAX, f"varints of {part.longest} bytes"
            column["size"] = part.sizes
            column["low"] = part.low
            column["high"] = part.high
        elif part.data is not None:
            _view_spans(column, part, part.data, len(buffers))
            buffers.append(part.data)
        else:
            column["size"] = 0
    held = [None, memory, *buffers]
    made = pa.Array.from_buffers(pa.binary_view(), count * len(parts), held)
    # The link's thread frees this buffer. Arrow's own allocator would return it to the system, and
    # fresh memory for each call cost more than joining small rows.
    return made.cast(pa.binary(), memory_pool=pa.system_memory_pool()).buffers()[2]


def _view_spans(
    column: npt.NDArray[np.void], part: ByteSpans, source: pa.Buffer, buffer: int
) -> None:
    sizes = np.maximum(part.sizes, 0)
    longs = column.view(_LONG_VIEW)
    longs["size"] = sizes
    longs["buffer"] = buffer
    longs["at"] = part.starts
    is_short = sizes <= INLINE_BYTES_MAX
    if not is_short.any():
        return
    data = np.frombuffer(source, np.uint8)
    # A short span is read as three words, which may extend beyond the end of the buffer.
    last = len(data) - INLINE_BYTES_MAX
    is_near = part.starts > last
    if is_short.all() and last >= 0:
        _hold(longs, slice(None), data, np.minimum(part.starts, last))
    else:
        far = np.flatnonzero(is_short & ~is_near)
        _hold(longs, far, data, part.starts[far])
    near = np.flatnonzero(is_short & is_near)
    first = max(0, last)
    tail = np.concatenate([data[first:], np.zeros(INLINE_BYTES_MAX, np.uint8)])
    _hold(longs, near, tail, part.starts[near] - first)


def _hold(
    longs: npt.NDArray[np.void],
    rows: Integers | slice,
    data: npt.NDArray[np.uint8],
    starts: Integers,
) -> None:
    """Copy short spans into their views. Bytes after a span are copied too, and ignored."""
    if len(starts) == 0:
        return
    words = np.ndarray((len(data) - 3,), _WORD, data, strides=(1,))
    longs["prefix"][rows] = words[starts]
    longs["buffer"][rows] = words[starts + 4]
    longs["at"][rows] = words[starts + 8]
