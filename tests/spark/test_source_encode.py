"""Arrow columns into batches: any reader of records sees the rows again, in the right partition."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_riverrun.encode import Payload, Rows, payloads
from pyspark_riverrun.partitioning import hashes_of, partitions_of_keys
from pyspark_riverrun.varints import read_varints, sizes_of, write_varints, zigzag
from riverrun.client.partitioner import murmur2, partition_of_key
from riverrun.records.record import NewRecord, read_headers, spans
from tests.records.strategies import new_records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

rows = st.lists(st.tuples(new_records, st.integers(0, 3)), min_size=1, max_size=40)


def columns_of(records: list[NewRecord]) -> Rows:
    """As Spark hands them over: a slice of something larger."""
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


@settings(max_examples=150, deadline=None)
@given(rows, st.integers(30, 400))
def test_any_rows_are_read_back_in_order_within_each_partition(
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


def test_text_and_missing_columns_are_written_too() -> None:
    table = Rows(key=None, value=pa.array(["ä", None]), headers=None)
    (payload,) = payloads(table, np.zeros(2, np.int64), 1000)
    assert read_back(payload) == [NewRecord(value="ä".encode()), NewRecord(value=None)]


def test_no_rows_are_no_batches() -> None:
    table = Rows(key=None, value=pa.array([], pa.binary()), headers=None)
    assert payloads(table, np.zeros(0, np.int64), 1000) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=30), st.integers(1, 12))
def test_keys_go_where_kafkas_partitioner_puts_them(keys: list[bytes | None], count: int) -> None:
    array = pa.array([b"first", *keys], pa.binary()).slice(1)
    hashed, placed = hashes_of(array), partitions_of_keys(array, count)
    for number, key in enumerate(keys):
        if key is not None:
            assert hashed[number] == murmur2(key)
            assert placed[number] == partition_of_key(key, count)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_numbers_of_any_size_round_trip(numbers: list[int]) -> None:
    marks = zigzag(np.array(numbers, np.int64))
    sizes = sizes_of(marks)
    starts = np.append(0, np.cumsum(sizes))
    data = np.zeros(int(starts[-1]), np.uint8)
    write_varints(data, starts[:-1], marks, sizes)
    found, after = read_varints(data, starts[:-1])
    assert found.tolist() == numbers
    assert after.tolist() == starts[1:].tolist()
