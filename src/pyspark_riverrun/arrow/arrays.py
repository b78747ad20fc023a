"""Arrow arrays over numpy memory, and the reverse, without copies.

``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas to check for its types, which takes half
a second in every Python worker of Spark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def integer_array(
    values: npt.NDArray[np.integer], kind: pa.DataType, is_null: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """An Arrow array over integers that have the width of ``kind``."""
    assert values.flags.c_contiguous, "Arrow arrays are contiguous"
    assert values.itemsize * 8 == kind.bit_width, (
        f"{values.dtype} does not have the width of {kind}"
    )
    valid = None
    if is_null is not None and is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def binary_slices(data: object, bounds: npt.NDArray[np.integer]) -> pa.Array:
    """A binary array over a buffer: each value reaches from one bound to the next."""
    offsets = pa.py_buffer(np.ascontiguousarray(bounds, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])


def is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each value is not null."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), np.bool_)
    start = array.offset
    found = np.unpackbits(
        np.frombuffer(bits, np.uint8), count=start + len(array), bitorder="little"
    )
    return found[start:].astype(np.bool_)


def int32_values(array: pa.Array) -> npt.NDArray[np.int64]:
    """The values of an int32 array. Nulls are undefined."""
    assert array.type == pa.int32(), f"{array.type} is not int32"
    if len(array) == 0:
        return np.zeros(0, np.int64)
    data = array.buffers()[1]
    found = np.frombuffer(data, np.int32, count=len(array), offset=array.offset * 4)
    return found.astype(np.int64)
