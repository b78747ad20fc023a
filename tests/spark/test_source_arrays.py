"""Arrow arrays over numpy memory, and their effect on Spark's Python workers."""

import gc
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_riverrun.arrow.arrays import binary_slices, int32_values, integer_array, is_valid
from pyspark_riverrun.cluster import link

IMPORTS = """
import sys
import pyarrow as pa
from pyspark_riverrun.arrow.decode import FIELDS, to_arrow
from pyspark_riverrun.writing.task import Rows, payloads
from riverrun.records.record import NewRecord, build_batch
import numpy as np

records = [NewRecord(value=b"v", headers=(("name", None),)), NewRecord(value=None, key=b"k")]
data = build_batch(records)
(table,) = to_arrow(data, topic="t", partition=0, start=0, end=2, columns=tuple(FIELDS))
rows = Rows(key=table["key"], value=table["value"], headers=table["headers"])
assert [one.count for one in payloads(rows, np.array([1, 0]), 1000)] == [1, 1]
assert "pandas" not in sys.modules, "pandas was imported"
"""


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_integer_array_has_the_values_and_nulls_of_numpy(values: list[int | None]) -> None:
    is_null = np.array([value is None for value in values], np.bool_)
    plain = np.array([value or 0 for value in values], np.int32)
    array = integer_array(plain, pa.int32(), is_null)
    array.validate(full=True)
    assert array.to_pylist() == values
    assert integer_array(plain, pa.int32()).to_pylist() == plain.tolist()


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.integers(0, 20))
def test_values_and_validity_of_a_slice_are_correct(values: list[int | None], start: int) -> None:
    part, left = pa.array(values, pa.int32()).slice(start), values[start:]
    assert is_valid(part).tolist() == [value is not None for value in left]
    seen = int32_values(part)
    assert [int(n) for n, value in zip(seen, left, strict=True) if value is not None] == [
        value for value in left if value is not None
    ]


def test_integer_array_rejects_other_widths_and_strides() -> None:
    with pytest.raises(AssertionError, match="int64 does not have the width of int32"):
        integer_array(np.zeros(3, np.int64), pa.int32())
    with pytest.raises(AssertionError, match="contiguous"):
        integer_array(np.zeros(6, np.int32)[::2], pa.int32())


def test_binary_slices_reach_from_bound_to_bound() -> None:
    array = binary_slices(b"abcdef", np.array([1, 1, 4, 6]))
    array.validate(full=True)
    assert array.to_pylist() == [b"", b"bcd", b"ef"]
    assert binary_slices(b"", np.zeros(1, np.int64)).to_pylist() == []


def test_reading_and_writing_do_not_import_pandas() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=60)


def test_heap_is_frozen_once_after_the_first_task() -> None:
    link._frozen.cache_clear()
    gc.unfreeze()
    link.freeze_heap()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    later: list[list[int]] = [[] for _ in range(1000)]
    link.freeze_heap()
    assert gc.get_freeze_count() <= frozen, "garbage of later tasks can be collected"
    del later
    gc.unfreeze()
