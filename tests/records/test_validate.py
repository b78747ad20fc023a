"""Valid produced batches are accepted; others are rejected with Kafka's error codes."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import crc_matches, read_header, write_crc
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, build_batch, read_records, rebuild_batch
from riverrun.records.validate import InvalidRecord, Limits, check_produced

from .strategies import codecs, record_lists

NOW = 1_000_000
LIMITS = Limits(bytes_max=1_000_000)
RECORDS = [
    NewRecord(b"one", b"k1", NOW - 5),
    NewRecord(None, b"k2", NOW),
    NewRecord(b"3", b"k3", NOW),
]


def changed(batch: bytes, at: int, code: str, value: int, *, with_crc: bool = True) -> bytearray:
    buffer = bytearray(batch)
    struct.pack_into(code, buffer, at, value)
    if with_crc:
        write_crc(buffer, 0, len(buffer))
    return buffer


def rejection(batch: bytes | bytearray, limits: Limits = LIMITS) -> KafkaError:
    before = bytearray(batch)
    given = bytearray(batch)
    with pytest.raises(KafkaError) as raised:
        check_produced(given, limits, NOW)
    assert given == before, "a rejected batch must not change"
    return raised.value


@pytest.mark.parametrize("codec", list(Compression))
def test_valid_batch_is_accepted_unchanged(codec: Compression) -> None:
    batch = bytearray(
        build_batch(RECORDS, compression=codec, producer_id=4, producer_epoch=0, base_sequence=0)
    )
    before = bytes(batch)
    stored, header = check_produced(batch, LIMITS, NOW)
    assert stored is batch
    assert batch == before
    assert header == read_header(before)
    view = memoryview(batch)
    assert check_produced(view, LIMITS, NOW)[0] is view


@pytest.mark.parametrize(
    ("field", "at", "code", "value"),
    [
        ("base offset", 0, ">q", 1),
        ("last offset delta", 23, ">i", 3),
        ("last offset delta", 23, ">i", 1),
        ("last offset delta", 23, ">i", -1),
        ("count", 57, ">i", 0),
        ("count", 57, ">i", -1),
        ("count", 57, ">i", 4),
        ("control bit", 21, ">h", 0x20),
        ("producer id without sequence", 43, ">q", 7),
    ],
)
def test_inconsistent_header_is_an_invalid_record(
    field: str, at: int, code: str, value: int
) -> None:
    assert (
        rejection(changed(build_batch(RECORDS), at, code, value)).code == ErrorCode.INVALID_RECORD
    )


def test_empty_batch_is_an_invalid_record() -> None:
    assert rejection(build_batch([])).code == ErrorCode.INVALID_RECORD


def test_no_bytes_are_an_invalid_record() -> None:
    assert rejection(b"").code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("at", "code", "value"), [(16, ">b", 3), (16, ">b", -1), (8, ">i", 13), (8, ">i", -9)]
)
def test_invalid_length_or_magic_is_corrupt(at: int, code: str, value: int) -> None:
    batch = changed(build_batch(RECORDS), at, code, value, with_crc=False)
    assert rejection(batch).code == ErrorCode.CORRUPT_MESSAGE
    assert rejection(batch[:40]).code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_invalid_records(magic: int) -> None:
    batch = changed(build_batch(RECORDS), 16, ">b", magic, with_crc=False)
    assert rejection(batch).code == ErrorCode.INVALID_RECORD


def test_every_truncation_is_rejected() -> None:
    batch = build_batch(RECORDS)
    for cut in range(len(batch)):
        assert rejection(batch[:cut]).code == ErrorCode.INVALID_RECORD


def test_wrong_crc_is_corrupt() -> None:
    batch = build_batch(RECORDS)
    for place in range(17, len(batch)):
        damaged = bytearray(batch)
        damaged[place] ^= 0x10
        assert rejection(damaged).code == ErrorCode.CORRUPT_MESSAGE


def test_second_batch_is_rejected_and_a_fragment_ignored() -> None:
    batch = build_batch(RECORDS)
    assert rejection(batch + batch).code == ErrorCode.INVALID_RECORD
    assert rejection(batch + bytes(30)).code == ErrorCode.CORRUPT_MESSAGE
    for fragment in (b"\0", batch[:-1]):
        stored, header = check_produced(bytearray(batch + fragment), LIMITS, NOW)
        assert bytes(stored) == batch
        assert header.size == len(batch)


def test_batch_over_the_limit_is_too_large() -> None:
    batch = build_batch(RECORDS)
    assert check_produced(bytearray(batch), Limits(bytes_max=len(batch)), NOW)
    assert rejection(batch, Limits(bytes_max=len(batch) - 1)).code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_compression_is_unsupported(codec: int) -> None:
    batch = changed(build_batch(RECORDS), 21, ">h", codec)
    assert rejection(batch).code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", list(Compression))
def test_records_without_keys_are_listed_for_a_compacted_topic(codec: Compression) -> None:
    records = [NewRecord(b"a", b"k"), NewRecord(b"b"), NewRecord(b"c", b""), NewRecord(b"d")]
    limits = Limits(bytes_max=10_000, is_compacted=True)
    error = rejection(build_batch(records, compression=codec), limits)
    assert isinstance(error, InvalidRecord)
    assert error.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in error.record_errors] == [1, 3]
    batch = bytearray(build_batch(RECORDS, compression=codec))
    assert check_produced(batch, limits, NOW)[0] is batch


def test_records_with_timestamps_out_of_range_are_listed() -> None:
    limits = Limits(bytes_max=10_000, timestamp_before_max_ms=100, timestamp_after_max_ms=50)
    good = [NewRecord(b"a", timestamp=NOW - 100), NewRecord(b"b", timestamp=NOW + 50)]
    assert check_produced(bytearray(build_batch(good)), limits, NOW)
    for bad in (NOW - 101, NOW + 51):
        error = rejection(build_batch([NewRecord(b"c", timestamp=bad), *good]), limits)
        assert isinstance(error, InvalidRecord)
        assert error.code == ErrorCode.INVALID_TIMESTAMP
        assert [index for index, _ in error.record_errors] == [0]


def test_records_without_a_timestamp_are_not_too_old() -> None:
    limits = Limits(bytes_max=10_000, timestamp_before_max_ms=100)
    assert check_produced(bytearray(build_batch([NewRecord(b"a")])), limits, NOW)


def test_max_timestamp_that_no_record_has_is_rejected() -> None:
    limits = Limits(bytes_max=10_000, timestamp_after_max_ms=50)
    error = rejection(changed(build_batch(RECORDS), 35, ">q", NOW + 51), limits)
    assert error.code == ErrorCode.INVALID_TIMESTAMP


def test_log_append_time_is_stamped() -> None:
    limits = Limits(bytes_max=10_000, log_append_time=True, timestamp_after_max_ms=0)
    batch = bytearray(build_batch([NewRecord(b"a", timestamp=NOW + 999)]))
    stored, header = check_produced(batch, limits, NOW)
    assert stored is batch
    assert header == read_header(batch)
    assert header.has_log_append_time
    assert crc_matches(batch, 0, len(batch))
    assert read_records(batch)[0].timestamp == NOW


def test_producers_cannot_set_log_append_time() -> None:
    batch = build_batch(RECORDS, log_append_time_ms=NOW)
    error = rejection(batch, Limits(bytes_max=10_000, log_append_time=True))
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    stored, header = check_produced(bytearray(batch), LIMITS, NOW)
    assert not header.has_log_append_time
    assert crc_matches(stored, 0, len(stored))
    assert header == read_header(stored)


@given(record_lists, codecs, codecs, st.booleans())
def test_recompression_changes_only_the_codec(
    records: list[NewRecord], source: Compression, target: Compression, log_append_time: bool
) -> None:
    batch = build_batch(
        records, compression=source, producer_id=9, producer_epoch=1, base_sequence=3
    )
    before, header_before = read_records(batch), read_header(batch)
    limits = Limits(bytes_max=1_000_000, compression=target, log_append_time=log_append_time)
    stored, header = check_produced(bytearray(batch), limits, NOW)
    assert header == read_header(stored)
    assert header.compression == target
    assert crc_matches(stored, 0, len(stored))
    assert header.producer_id == 9
    assert header.base_sequence == 3
    after = read_records(stored)
    assert [(r.offset, r.key, r.value, r.headers) for r in after] == [
        (r.offset, r.key, r.value, r.headers) for r in before
    ]
    if log_append_time:
        assert {r.timestamp for r in after} == {NOW}
    else:
        assert after == before
        assert header.max_timestamp == header_before.max_timestamp


def test_recompression_may_make_a_batch_too_large() -> None:
    batch = build_batch([NewRecord(b"x" * 5000)], compression=Compression.ZSTD)
    limits = Limits(bytes_max=1000, compression=Compression.NONE)
    assert rejection(batch, limits).code == ErrorCode.MESSAGE_TOO_LARGE


def test_recompression_rejects_unreadable_records() -> None:
    header = read_header(build_batch([NewRecord(b"v")]))
    for codec in Compression:
        batch = bytearray(rebuild_batch(header, b"\x99" * 30))
        struct.pack_into(">h", batch, 21, codec)
        write_crc(batch, 0, len(batch))
        target = Compression.NONE if codec else Compression.LZ4
        error = rejection(batch, Limits(bytes_max=10_000, compression=target))
        assert error.code == ErrorCode.INVALID_RECORD


def test_decompression_bomb_is_an_invalid_record() -> None:
    header = read_header(build_batch([NewRecord(b"v")], compression=Compression.ZSTD))
    bomb = rebuild_batch(header, bytes(129 * 1024 * 1024))
    assert len(bomb) < 100_000
    assert rejection(bomb, Limits(bytes_max=100_000, is_compacted=True)).code == (
        ErrorCode.INVALID_RECORD
    )


@given(
    st.binary(max_size=120),
    st.integers(0, 100),
    st.builds(
        Limits,
        bytes_max=st.just(1000),
        timestamp_before_max_ms=st.sampled_from([100, 2**63 - 1]),
        timestamp_after_max_ms=st.just(100),
        is_compacted=st.booleans(),
        compression=st.none() | codecs,
        log_append_time=st.booleans(),
    ),
)
def test_garbage_raises_only_kafka_error(data: bytes, at: int, limits: Limits) -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[at : at + len(data)] = data
    for has_crc in (False, True):
        if has_crc and len(batch) > 61:
            struct.pack_into(">i", batch, 8, len(batch) - 12)
            write_crc(batch, 0, len(batch))
        try:
            stored, header = check_produced(bytearray(batch), limits, NOW)
        except KafkaError:
            continue
        assert header == read_header(stored)
        assert crc_matches(stored, 0, len(stored))
