"""Arrow's arrays over the memory of numpy's, and the other way round.

``pa.array``, ``pa.scalar`` and ``to_numpy`` ask whether they have to do with pandas, and import it
for that: half a second in every process of Spark that reads or writes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(
    values: npt.NDArray[np.integer], kind: pa.DataType, is_null: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Of as many bytes each as the type has."""
    assert values.flags.c_contiguous, "Arrow has no strides"
    assert values.itemsize * 8 == kind.bit_width, f"{values.dtype} is no {kind}"
    valid = None
    if is_null is not None and is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(values)])


def pieces(data: object, bounds: npt.NDArray[np.integer]) -> pa.Array:
    """Bytes of a buffer from each bound to the next."""
    places = pa.py_buffer(np.ascontiguousarray(bounds, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, places, pa.py_buffer(data)])


def is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether each value is there."""
    bits = array.buffers()[0]
    if bits is None:
        return np.ones(len(array), np.bool_)
    start = array.offset
    found = np.unpackbits(
        np.frombuffer(bits, np.uint8), count=start + len(array), bitorder="little"
    )
    return found[start:].astype(np.bool_)


def values_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Of an array of int32; what is null is any number."""
    assert array.type == pa.int32(), f"{array.type} is no int32"
    if len(array) == 0:
        return np.zeros(0, np.int64)
    data = array.buffers()[1]
    found = np.frombuffer(data, np.int32, count=len(array), offset=array.offset * 4)
    return found.astype(np.int64)
