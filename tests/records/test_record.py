"""Records round-trip; invalid batches raise CorruptBatch."""

import contextlib
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from riverrun.records.batch import HEADER_BYTES, CorruptBatch, crc_matches, read_header
from riverrun.records.compression import Compression
from riverrun.records.record import (
    ControlType,
    NewRecord,
    Record,
    build_batch,
    header_of,
    payload_of,
    read_records,
    rebuild_batch,
    spans,
    write_varint,
)

from .strategies import codecs, new_records, record_lists


@given(record_lists, codecs, st.integers(0, 2**50), st.none() | st.integers(0, 2**45))
def test_records_round_trip(
    records: list[NewRecord], codec: Compression, base_offset: int, delete_horizon: int | None
) -> None:
    batch = build_batch(
        records, base_offset=base_offset, compression=codec, delete_horizon_ms=delete_horizon
    )
    assert crc_matches(batch, 0, len(batch))
    assert read_header(batch).max_timestamp == max(record.timestamp for record in records)
    assert read_records(batch) == [
        Record(base_offset + index, record.timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    ]


def test_empty_batch_has_no_records() -> None:
    for codec in Compression:
        batch = build_batch([], compression=codec)
        assert read_records(batch) == []


def test_log_append_time_replaces_timestamps() -> None:
    batch = build_batch([NewRecord(b"v", timestamp=5)], log_append_time_ms=99)
    assert [record.timestamp for record in read_records(batch)] == [99]


def test_header_names_that_are_not_utf8_round_trip() -> None:
    batch = build_batch([NewRecord(b"v", headers=(("\udcff", b"1"),))])
    assert b"\xff" in batch
    assert read_records(batch)[0].headers == (("\udcff", b"1"),)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
@example(-1, b"")
@example(2**63 - 1, b"")
def test_timestamps_of_any_size_round_trip(timestamp: int, key: bytes) -> None:
    records = [NewRecord(b"", key, 0), NewRecord(b"", key, timestamp)]
    assert read_records(build_batch(records))[1].timestamp == timestamp


@pytest.mark.parametrize("codec", list(Compression))
def test_every_truncation_is_corrupt(codec: Compression) -> None:
    batch = build_batch(
        [NewRecord(b"value" * 3, b"key", 7, (("h", b"1"), ("n", None)))] * 3, compression=codec
    )
    for cut in range(len(batch)):
        with pytest.raises(CorruptBatch):
            read_records(batch[:cut])
        if cut >= 61:  # also with a length field that matches the truncation
            shorter = bytearray(batch[:cut])
            struct.pack_into(">i", shorter, 8, cut - 12)
            with pytest.raises(CorruptBatch):
                read_records(shorter)


@pytest.mark.parametrize("codec", list(Compression))
def test_trailing_bytes_are_corrupt(codec: Compression) -> None:
    header = read_header(build_batch([NewRecord(b"v")], compression=codec))
    payload = payload_of(build_batch([NewRecord(b"v")]), header._replace(attributes=0, length=60))
    with pytest.raises(CorruptBatch):
        read_records(rebuild_batch(header, payload + b"\0"))


@given(record_lists, codecs, st.data())
def test_damaged_batches_raise_only_corrupt_batch(
    records: list[NewRecord], codec: Compression, data: st.DataObject
) -> None:
    batch = bytearray(build_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(batch) - 1))
        batch[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        read_records(batch)


@given(st.binary(max_size=200), st.integers(-2, 30), st.integers(0, 7))
def test_garbage_after_a_header_raises_only_corrupt_batch(
    data: bytes, count: int, codec: int
) -> None:
    header = read_header(build_batch([NewRecord(b"v")]))
    batch = bytearray(rebuild_batch(header._replace(count=count), data))
    batch[22] = codec
    with contextlib.suppress(CorruptBatch):
        read_records(batch)


@pytest.mark.parametrize("count", [-1, -(2**31), 2, 1000, 2**31 - 1])
def test_wrong_record_count_is_corrupt(count: int) -> None:
    batch = bytearray(build_batch([NewRecord(b"v" * 100)]))
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptBatch):
        read_records(batch)


def test_varint_of_more_than_ten_bytes_is_corrupt() -> None:
    header = read_header(build_batch([NewRecord(b"v")]))
    with pytest.raises(CorruptBatch, match="more than 10 bytes"):
        read_records(rebuild_batch(header, b"\xff" * 40))


@given(st.lists(new_records, max_size=6))
def test_spans_are_adjacent(records: list[NewRecord]) -> None:
    batch = build_batch(records)
    payload = payload_of(batch, read_header(batch))
    at = 0
    for record, span in zip(records, spans(payload, len(records)), strict=True):
        start, end, _, _, key_at, key_length, value_at, value_length = span
        assert start == at
        assert (record.key is None) == (key_length == -1)
        assert payload[key_at : key_at + max(key_length, 0)] == (record.key or b"")
        assert payload[value_at : value_at + max(value_length, 0)] == (record.value or b"")
        at = end
    assert at == len(payload)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_varints_are_encoded_like_protocol_buffers(value: int, encoded: str) -> None:
    output = bytearray()
    write_varint(output, value)
    assert output.hex() == encoded


def test_control_types_round_trip_through_keys() -> None:
    assert ControlType.COMMIT.key() == b"\0\0\0\1"
    for control in ControlType:
        assert ControlType.of(control.key()) is control
    for key in (None, b"", b"\0\0\0", b"\0\0\0\x63"):
        assert ControlType.of(key) is None


@given(record_lists)
def test_separate_header_equals_the_header_of_the_batch(records: list[NewRecord]) -> None:
    batch = build_batch(records, producer_id=7, producer_epoch=2, base_sequence=5)
    body = memoryview(batch)[HEADER_BYTES:]
    header = read_header(batch, 0)._replace(length=0, crc=0)
    assert header_of(header, body) + bytes(body) == batch == rebuild_batch(header, body)
