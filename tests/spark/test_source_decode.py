"""Decoding of fetch responses, compared with the reader that decodes one record at a time."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_riverrun import RiverrunSource
from pyspark_riverrun.arrow import decode
from pyspark_riverrun.arrow.decode import (
    COLUMNS,
    FIELDS,
    MILLISECONDS_MAX,
    FetchedBatches,
    schema_of,
    to_arrow,
)
from riverrun.records.batch import CorruptBatch, batches, write_crc
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, NewRecord, Record, build_batch, read_records
from tests.records.strategies import codecs, record_lists

EVERYTHING = 2**62

made_batches = st.lists(
    st.tuples(
        record_lists,
        codecs,
        st.none() | st.integers(0, 2**45),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=5,
)


def response_of(parts: list[tuple[list[NewRecord], Compression, int | None, int]]) -> bytes:
    """Consecutive batches, some with LogAppendTime, with gaps between their offsets."""
    data = b""
    offset = 0
    for records, codec, append_time_ms, hole in parts:
        offset += hole
        data += build_batch(
            records, base_offset=offset, compression=codec, log_append_time_ms=append_time_ms
        )
        offset += len(records)
    return data


def plain_rows(data: bytes) -> list[tuple[Record, int]]:
    """(record, timestamp type) from the reader of single records."""
    return [
        (record, int(header.has_log_append_time))
        for at, header in batches(data)
        for record in read_records(data[at : at + header.size])
    ]


walks = st.sampled_from([decode.PARALLEL_MIN, 1, 0])
"""The default, a low threshold, and always the parallel walk."""


def rows_of(tables: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for table in tables for row in table.to_pylist()]


@settings(max_examples=150, deadline=None)
@given(made_batches, st.integers(0, 40), st.integers(0, 80), walks)
def test_any_response_decodes_like_the_record_reader(
    parts: list[tuple[list[NewRecord], Compression, int | None, int]],
    start: int,
    size: int,
    abreast_min: int,
) -> None:
    data = response_of(parts)
    end = start + size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PARALLEL_MIN", abreast_min)
        found = to_arrow(
            data, topic="flüsse", partition=3, start=start, end=end, columns=tuple(FIELDS)
        )
        tables = list(found)
    expected = [(r, kind) for r, kind in plain_rows(data) if start <= r.offset < end]
    rows = rows_of(tables)
    assert [row["offset"] for row in rows] == [record.offset for record, _ in expected]
    assert [row["key"] for row in rows] == [record.key for record, _ in expected]
    assert [row["value"] for row in rows] == [record.value for record, _ in expected]
    assert [row["timestampType"] for row in rows] == [kind for _, kind in expected]
    times = [time for table in tables for time in table["timestamp"].cast(pa.int64()).to_pylist()]
    assert times == [record.timestamp * 1000 for record, _ in expected]
    headers = [
        None if row["headers"] is None else tuple((h["key"], h["value"]) for h in row["headers"])  # type: ignore[attr-defined]
        for row in rows
    ]
    assert headers == [record.headers or None for record, _ in expected]
    assert {(row["topic"], row["partition"]) for row in rows} <= {("flüsse", 3)}
    for table in tables:
        table.validate(full=True)


@pytest.mark.parametrize("value_bytes", [0, 3, 63, 64, 5000, 20000])
@pytest.mark.parametrize("count", [1, 31, 200, 9000])
def test_runs_of_equal_length_are_walked_in_strides(value_bytes: int, count: int) -> None:
    count = min(count, 4_000_000 // (value_bytes + 10))
    odd = count // 2
    values = [bytes(value_bytes + (3 if n == odd else 0)) for n in range(count)]
    data = build_batch([NewRecord(value=value) for value in values])
    (table,) = to_arrow(data, topic="t", partition=0, start=0, end=EVERYTHING)
    assert table["value"].to_pylist() == values
    assert table["offset"].to_pylist() == list(range(count))


def test_many_small_batches_are_walked_in_parallel() -> None:
    counts = [n % 7 for n in range(4 * decode.PARALLEL_MIN)]  # compaction leaves empty batches too
    values = [[bytes([n % 256]) * (20 * n % 301) for n in range(count)] for count in counts]
    data = response_of(
        [([NewRecord(value=v) for v in row], Compression.NONE, None, 0) for row in values]
    )
    (table,) = to_arrow(data, topic="t", partition=0, start=0, end=EVERYTHING)
    assert table["value"].to_pylist() == [value for row in values for value in row]


def test_only_requested_columns_are_returned_in_order() -> None:
    data = build_batch([NewRecord(value=b"v", key=b"k")])
    (table,) = to_arrow(
        data, topic="t", partition=0, start=0, end=EVERYTHING, columns=("offset", "value")
    )
    assert table.to_pylist() == [{"offset": 0, "value": b"v"}]
    assert table.schema.names == ["offset", "value"]


def test_empty_range_yields_no_table() -> None:
    data = build_batch([NewRecord(value=b"v")], base_offset=7)
    assert list(to_arrow(data, topic="t", partition=0, start=0, end=7)) == []
    assert list(to_arrow(data, topic="t", partition=0, start=8, end=9)) == []
    assert list(to_arrow(b"", topic="t", partition=0, start=0, end=9)) == []


def test_control_records_are_hidden() -> None:
    marker = build_batch(
        [NewRecord(key=ControlType.COMMIT.key(), value=b"")], base_offset=1, control=True
    )
    data = build_batch([NewRecord(value=b"v")]) + marker
    (table,) = to_arrow(data, topic="t", partition=0, start=0, end=EVERYTHING)
    assert table["value"].to_pylist() == [b"v"]


def test_only_records_of_aborted_transactions_are_hidden() -> None:
    def of(producer: int, offset: int, value: bytes) -> bytes:
        return build_batch(
            [NewRecord(value=value)],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    def marker(producer: int, offset: int, kind: ControlType) -> bytes:
        return build_batch(
            [NewRecord(key=kind.key(), value=b"")],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            transactional=True,
            control=True,
        )

    data = (
        of(1, 0, b"aborted")
        + of(2, 1, b"committed")
        + marker(1, 2, ControlType.ABORT)
        + of(1, 3, b"next transaction")
        + marker(2, 4, ControlType.COMMIT)
    )
    portion = FetchedBatches(data=data, headers=list(batches(data)), aborted=((1, 0),))
    (table,) = to_arrow(portion, topic="t", partition=0, start=0, end=EVERYTHING)
    assert table["value"].to_pylist() == [b"committed", b"next transaction"]


def test_large_decompressed_data_yields_several_tables() -> None:
    large = build_batch([NewRecord(value=bytes(40_000_000))], compression=Compression.ZSTD)
    second = build_batch(
        [NewRecord(value=bytes(40_000_000))], compression=Compression.ZSTD, base_offset=1
    )
    tables = list(to_arrow(large + second, topic="t", partition=0, start=0, end=EVERYTHING))
    assert [table["offset"].to_pylist() for table in tables] == [[0], [1]]


def test_corrupt_batch_is_rejected() -> None:
    data = bytearray(build_batch([NewRecord(value=b"value")]))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        list(to_arrow(bytes(data), topic="t", partition=0, start=0, end=EVERYTHING))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(0, 30), walks)
def test_random_bytes_with_valid_crc_never_crash(body: bytes, count: int, abreast_min: int) -> None:
    data = sealed(body, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PARALLEL_MIN", abreast_min)
        try:
            found = to_arrow(
                data,
                topic="t",
                partition=0,
                start=0,
                end=EVERYTHING,
                columns=tuple(FIELDS),
            )
            tables = list(found)
        except CorruptBatch:
            return
    assert sum(table.num_rows for table in tables) <= count


def sealed(body: bytes, count: int) -> bytes:
    """A batch with a valid CRC and arbitrary records."""
    data = bytearray(build_batch([]) + body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">i", data, 23, max(count - 1, 0))
    struct.pack_into(">i", data, 57, count)
    write_crc(data, 0, len(data))
    return bytes(data)


@pytest.mark.parametrize("columns", [("value",), ("key",), tuple(FIELDS)])
def test_value_that_ends_beyond_64_bits_is_rejected(columns: tuple[str, ...]) -> None:
    beyond = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2**63 - 1, as a varint
    record = bytes([0, 0, 0]) + b"\x02k" + beyond + b"v" * 9
    data = build_batch([NewRecord(value=b"v")]) + sealed(bytes([2 * len(record)]) + record, 1)
    try:
        tables = list(
            to_arrow(data, topic="t", partition=0, start=0, end=EVERYTHING, columns=columns)
        )
    except CorruptBatch:
        return
    assert columns == ("key",)
    for table in tables:
        table.validate(full=True)


def test_impossible_record_counts_allocate_nothing() -> None:
    body = b"\x01" * 39  # lengths of -1: no record would advance
    size, many = 100, 2000
    data = b"".join(sealed(body, (many - n) * size // 7 - 61) for n in range(many))
    assert len(data) == many * size
    with pytest.raises(CorruptBatch, match="records in 200000 bytes"):
        list(to_arrow(data, topic="t", partition=0, start=0, end=EVERYTHING))


@pytest.mark.parametrize(("flag", "columns"), [("false", COLUMNS), ("TRUE", tuple(FIELDS))])
def test_arrow_schema_equals_sparks(flag: str, columns: tuple[str, ...]) -> None:
    declared = RiverrunSource({"includeHeaders": flag}).schema()
    assert to_arrow_schema(declared, timezone="UTC") == schema_of(columns)


@pytest.mark.parametrize("time", [2**60, -(2**60)])
def test_timestamps_beyond_sparks_range_are_clipped(time: int) -> None:
    data = build_batch([NewRecord(value=b"v", timestamp=time)])
    (table,) = to_arrow(data, topic="t", partition=0, start=0, end=1, columns=("timestamp",))
    (micros,) = table["timestamp"].cast(pa.int64()).to_pylist()
    assert micros == (1 if time > 0 else -1) * MILLISECONDS_MAX * 1000
