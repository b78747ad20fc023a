"""Encoding of Arrow columns: the record reader returns the same rows, in the right partition."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_riverrun.arrow import byte_join as gather
from pyspark_riverrun.arrow import encode
from pyspark_riverrun.arrow.byte_join import VarintColumn, join_rows
from pyspark_riverrun.arrow.encode import Payload, Rows, payloads
from pyspark_riverrun.arrow.varints import read_varints, sizes_of, zigzag
from pyspark_riverrun.writing.partitioning import hashes_of, partitions_of_keys
from riverrun.client.partitioner import murmur2, partition_of_key
from riverrun.records.record import NewRecord, read_headers, spans, write_varint
from tests.records.strategies import new_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

rows = st.lists(st.tuples(new_records, st.integers(0, 3)), min_size=1, max_size=40)


def columns_of(records: list[NewRecord]) -> Rows:
    """Columns as slices of larger arrays, as Spark passes them."""
    pad = [NewRecord(value=b"before", key=b"k", headers=(("h", b"x"),))]
    everything = pad + records + pad
    headers = [
        [{"key": name, "value": value} for name, value in record.headers] or None
        for record in everything
    ]
    whole = Rows(
        key=pa.array([record.key for record in everything], pa.binary()),
        value=pa.array([record.value for record in everything], pa.binary()),
        headers=pa.array(headers, HEADERS),
    )
    return whole.slice(1, len(records))


def read_back(payload: Payload) -> list[NewRecord]:
    data = bytes(payload.records)
    found = []
    for number, span in enumerate(spans(data, payload.count)):
        _, end, time_delta, offset_delta, key_at, key_size, value_at, value_size = span
        assert (time_delta, offset_delta) == (0, number)
        found.append(
            NewRecord(
                key=data[key_at : key_at + key_size] if key_size >= 0 else None,
                value=data[value_at : value_at + value_size] if value_size >= 0 else None,
                headers=read_headers(data, value_at + max(value_size, 0), end),
            )
        )
    return found


@pytest.fixture(params=[True, False], ids=["views", "columns"])
def join_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both join methods, as far as this pyarrow supports them."""
    if request.param and not gather.SUPPORTS_VIEWS:
        pytest.skip("this pyarrow makes no views over memory of others")
    monkeypatch.setattr(gather, "SUPPORTS_VIEWS", request.param)


SAME_WAY = [HealthCheck.function_scoped_fixture]


@pytest.mark.usefixtures("join_method")
@settings(max_examples=150, deadline=None, suppress_health_check=SAME_WAY)
@given(rows, st.integers(30, 400))
def test_any_rows_are_read_back_in_order_per_partition(
    made: list[tuple[NewRecord, int]], bytes_max: int
) -> None:
    records = [
        NewRecord(key=record.key, value=record.value, headers=record.headers) for record, _ in made
    ]
    partitions = np.array([partition for _, partition in made], np.int64)
    written = payloads(columns_of(records), partitions, bytes_max)
    for partition in range(4):
        found = [r for one in written if one.partition == partition for r in read_back(one)]
        expected = [r for r, p in zip(records, partitions, strict=True) if p == partition]
        assert found == expected
    for one in written:
        assert one.count == 1 or len(one.records) <= bytes_max


@pytest.mark.usefixtures("join_method")
def test_string_and_missing_columns_are_written() -> None:
    table = Rows(key=None, value=pa.array(["ä", None]), headers=None)
    (payload,) = payloads(table, np.zeros(2, np.int64), 1000)
    assert read_back(payload) == [NewRecord(value="ä".encode()), NewRecord(value=None)]


def test_no_rows_give_no_batches() -> None:
    table = Rows(key=None, value=pa.array([], pa.binary()), headers=None)
    assert payloads(table, np.zeros(0, np.int64), 1000) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 12))
def test_keys_are_partitioned_like_kafkas_default_partitioner(
    keys: list[bytes | None], count: int
) -> None:
    array = pa.array([b"first", *keys], pa.binary()).slice(1)
    hashed, placed = hashes_of(array), partitions_of_keys(array, count)
    for number, key in enumerate(keys):
        if key is not None:
            assert hashed[number] == murmur2(key)
            assert placed[number] == partition_of_key(key, count)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_varints_of_any_size_are_read(numbers: list[int]) -> None:
    data = bytearray()
    starts = [0]
    for number in numbers:
        write_varint(data, number)
        starts.append(len(data))
    assert np.cumsum(sizes_of(zigzag(np.array(numbers, np.int64)))).tolist() == starts[1:]
    found, after = read_varints(np.frombuffer(data, np.uint8), np.array(starts[:-1]))
    assert found.tolist() == numbers
    assert after.tolist() == starts[1:]


NUMBERS = st.integers(-(2**34), 2**34 - 1) | st.integers(-300, 300)


@pytest.mark.usefixtures("join_method")
@settings(deadline=None, suppress_health_check=SAME_WAY)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=20))
def test_consecutive_varints_are_written(pairs: list[tuple[int, int]]) -> None:
    written = VarintColumn(len(pairs))
    expected = bytearray()
    for place in range(2):
        marks = zigzag(np.array([pair[place] for pair in pairs], np.int64))
        written.put(marks, sizes_of(marks))
        written.skip(1 - place)
    for first, second in pairs:
        write_varint(expected, first)
        expected.append(0)
        write_varint(expected, second)
    assert join_rows([written]).to_pybytes() == expected


@pytest.mark.usefixtures("join_method")
@pytest.mark.parametrize("count", [1, 3, 300])
def test_spans_of_any_size_are_joined(count: int) -> None:
    """Views contain short spans and point to long ones. The last spans end their buffer."""
    for shift in range(16):
        sizes = [(shift + number) % 16 for number in range(count)]
        keys = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        values = [key[::-1] + key for key in reversed(keys)]
        table = Rows(key=pa.array(keys), value=pa.array(values), headers=None)
        (payload,) = payloads(table, np.zeros(count, np.int64), 1_000_000)
        expected = [NewRecord(key=k, value=v) for k, v in zip(keys, values, strict=True)]
        assert read_back(payload) == expected


@pytest.mark.usefixtures("join_method")
def test_varints_that_fill_a_view_are_written() -> None:
    """The size of a large record, its delta in a large batch, and the size of a large key."""
    count = 9000
    keys = [b"k" * 70_000 if number == count - 1 else b"" for number in range(count)]
    values = [b"v" * 2_100_000 if number >= count - 2 else None for number in range(count)]
    table = Rows(key=pa.array(keys), value=pa.array(values, pa.binary()), headers=None)
    (payload,) = payloads(table, np.zeros(count, np.int64), 10_000_000)
    expected = [NewRecord(key=k, value=v) for k, v in zip(keys, values, strict=True)]
    assert read_back(payload) == expected
    (payload,) = payloads(
        Rows(key=None, value=table.value, headers=None), np.zeros(count, np.int64), 10_000_000
    )
    assert read_back(payload) == [NewRecord(value=value) for value in values]


@pytest.mark.usefixtures("join_method")
def test_large_columns_are_written_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "JOINED_BYTES_MAX", 200)
    values = [f"value {number}" for number in range(40)]
    partitions = np.arange(40) % 2
    table = Rows(key=None, value=pa.array(values, pa.large_string()), headers=None)
    written = payloads(table, partitions, 1000)
    assert len(written) > 2
    for partition in range(2):
        found = [r.value for p in written if p.partition == partition for r in read_back(p)]
        assert found == [value.encode() for value in values[partition::2]]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99)), min_size=1, max_size=60),
    st.integers(1, 300),
)
def test_batches_are_as_large_as_allowed(made: list[tuple[int, int]], bytes_max: int) -> None:
    made.sort()
    partitions = np.array([partition for partition, _ in made], np.int64)
    sizes = np.array([size for _, size in made], np.int64)
    expected, room = [0], bytes_max
    for number, (partition, size) in enumerate(made):
        if number and (partition != made[number - 1][0] or size > room):
            expected.append(number)
            room = bytes_max
        room -= size
    assert encode._cuts(partitions, sizes, bytes_max) == [*expected, len(made)]
