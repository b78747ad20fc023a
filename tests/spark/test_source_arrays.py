"""Arrow's arrays over numpy's memory, and what processes of Spark are spared by them."""

import gc
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_riverrun.arrow.arrays import is_valid, numbers, pieces, values_of
from pyspark_riverrun.cluster import link

IMPORTS = """
import sys
import pyarrow as pa
from pyspark_riverrun.arrow.decode import COLUMNS_WITH_HEADERS, to_arrow
from pyspark_riverrun.writing.writer import Rows, payloads
from riverrun.records.record import NewRecord, build_batch
import numpy as np

records = [NewRecord(value=b"v", headers=(("name", None),)), NewRecord(value=None, key=b"k")]
data = build_batch(records)
(table,) = to_arrow(data, topic="t", partition=0, start=0, end=2, columns=COLUMNS_WITH_HEADERS)
rows = Rows(key=table["key"], value=table["value"], headers=table["headers"])
assert [one.count for one in payloads(rows, np.array([1, 0]), 1000)] == [1, 1]
assert "pandas" not in sys.modules, "pandas was imported"
"""


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)))
def test_numbers_are_those_of_numpy_but_for_nulls(values: list[int | None]) -> None:
    is_null = np.array([value is None for value in values], np.bool_)
    plain = np.array([value or 0 for value in values], np.int32)
    array = numbers(plain, pa.int32(), is_null)
    array.validate(full=True)
    assert array.to_pylist() == values
    assert numbers(plain, pa.int32()).to_pylist() == plain.tolist()


@settings(deadline=None)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1)), st.integers(0, 20))
def test_numpy_sees_the_values_of_an_array_and_of_a_part_of_it(
    values: list[int | None], start: int
) -> None:
    part, left = pa.array(values, pa.int32()).slice(start), values[start:]
    assert is_valid(part).tolist() == [value is not None for value in left]
    seen = values_of(part)
    assert [int(n) for n, value in zip(seen, left, strict=True) if value is not None] == [
        value for value in left if value is not None
    ]


def test_numbers_of_another_size_are_refused() -> None:
    with pytest.raises(AssertionError, match="int64 is no int32"):
        numbers(np.zeros(3, np.int64), pa.int32())
    with pytest.raises(AssertionError, match="strides"):
        numbers(np.zeros(6, np.int32)[::2], pa.int32())


def test_pieces_lie_between_bounds() -> None:
    array = pieces(b"abcdef", np.array([1, 1, 4, 6]))
    array.validate(full=True)
    assert array.to_pylist() == [b"", b"bcd", b"ef"]
    assert pieces(b"", np.zeros(1, np.int64)).to_pylist() == []


def test_reading_and_writing_do_without_pandas() -> None:
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=60)


def test_what_is_there_after_a_task_is_not_looked_at_again() -> None:
    link._settled.cache_clear()
    gc.unfreeze()
    link.settle()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    later = [[] for _ in range(1000)]
    link.settle()
    assert gc.get_freeze_count() <= frozen, "what tasks leave behind can be collected"
    del later
    gc.unfreeze()
