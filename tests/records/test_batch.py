"""Reading and stamping batch headers, and finding batches in a buffer."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.records.batch import (
    HEADER,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    batches,
    crc_matches,
    read_header,
    stamp,
    stamp_log_append_time,
)
from riverrun.records.record import NewRecord, build_batch, read_records

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)

RECORDS = [
    NewRecord(b"one", b"k1", 1000),
    NewRecord(None, b"k2", 1500),
    NewRecord(b"three", None, 900),
]


@given(
    st.builds(
        BatchHeader,
        base_offset=INT64,
        length=INT32,
        leader_epoch=INT32,
        magic=st.integers(-128, 127),
        crc=st.integers(0, 2**32 - 1),
        attributes=INT16,
        last_offset_delta=INT32,
        base_timestamp=INT64,
        max_timestamp=INT64,
        producer_id=INT64,
        producer_epoch=INT16,
        base_sequence=INT32,
        count=INT32,
    )
)
def test_header_round_trips(header: BatchHeader) -> None:
    packed = HEADER.pack(*header)
    assert len(packed) == HEADER_BYTES
    assert read_header(b"before" + packed, 6) == header


def test_header_has_the_values_of_the_built_batch() -> None:
    batch = build_batch(
        RECORDS,
        base_offset=70,
        leader_epoch=3,
        producer_id=8,
        producer_epoch=2,
        base_sequence=40,
        transactional=True,
        control=True,
        delete_horizon_ms=5000,
    )
    header = read_header(batch)
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (70, 72, 73)
    assert (header.leader_epoch, header.count) == (3, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, 40)
    assert header.last_sequence == 42
    assert header.max_timestamp == 1500
    assert header.is_transactional
    assert header.is_control
    assert header.delete_horizon == 5000
    assert not header.has_log_append_time


def test_plain_batch_has_no_flags() -> None:
    header = read_header(build_batch(RECORDS))
    assert header.attributes == 0
    assert header.delete_horizon is None
    assert header.base_timestamp == 1000
    assert header.last_sequence == -1


def test_sequences_wrap_around() -> None:
    batch = build_batch(RECORDS, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert read_header(batch).last_sequence == 0


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_truncated_header_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatch):
        read_header(build_batch(RECORDS)[:size])


def test_crc_detects_every_changed_bit_after_it() -> None:
    batch = bytearray(build_batch(RECORDS))
    assert crc_matches(batch, 0, len(batch))
    for place in range(17, len(batch)):
        for bit in range(8):
            batch[place] ^= 1 << bit
            assert not crc_matches(batch, 0, len(batch))
            batch[place] ^= 1 << bit


def test_stamping_leaves_the_crc_valid() -> None:
    batch = build_batch(RECORDS)
    buffer = bytearray(b"12345" + batch + b"67890")
    stamp(buffer, 5, 2**40, 77)
    header = read_header(buffer, 5)
    assert (header.base_offset, header.leader_epoch) == (2**40, 77)
    assert crc_matches(buffer, 5, len(batch))
    assert buffer[:5] + buffer[5 + len(batch) :] == b"1234567890"
    assert [record.offset for record in read_records(buffer[5 : 5 + len(batch)])] == [
        2**40,
        2**40 + 1,
        2**40 + 2,
    ]


def test_log_append_time_overrides_timestamps_of_records() -> None:
    batch = build_batch(RECORDS)
    buffer = bytearray(b"xx" + batch)
    stamp_log_append_time(buffer, 2, len(batch), 123_456)
    header = read_header(buffer, 2)
    assert header.has_log_append_time
    assert header.max_timestamp == 123_456
    assert crc_matches(buffer, 2, len(batch))
    assert {record.timestamp for record in read_records(buffer[2:])} == {123_456}


def test_batches_are_found_in_order() -> None:
    parts = [build_batch(RECORDS[:count], base_offset=10 * count) for count in (1, 2, 3)]
    found = list(batches(b"".join(parts)))
    assert [position for position, _ in found] == [0, len(parts[0]), len(parts[0]) + len(parts[1])]
    assert [header.base_offset for _, header in found] == [10, 20, 30]


def test_partial_batch_at_the_end_is_ignored_for_every_truncation() -> None:
    first, second = build_batch(RECORDS[:1]), build_batch(RECORDS, base_offset=1)
    whole = first + second
    for cut in range(len(whole)):
        expected = (cut >= len(first)) + (cut >= len(whole))
        assert len(list(batches(whole[:cut]))) == expected
    assert len(list(batches(whole))) == 2


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [(8, ">i", 48), (8, ">i", 0), (8, ">i", -1), (8, ">i", -(2**31)), (16, ">b", 1), (16, ">b", 3)],
)
@pytest.mark.parametrize("cut", [17, 40, 61, 1000])
def test_invalid_length_or_magic_is_corrupt_even_if_truncated(
    at: int, code: str, value: int, cut: int
) -> None:
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(code, batch, at, value)
    with pytest.raises(CorruptBatch):
        list(batches(batch[:cut]))


@given(st.binary(max_size=300))
def test_garbage_is_corrupt_or_partial(data: bytes) -> None:
    try:
        found = list(batches(data))
    except CorruptBatch:
        return
    assert sum(header.size for _, header in found) <= len(data)
