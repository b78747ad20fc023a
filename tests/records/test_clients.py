"""Batches are compatible with aiokafka, kafka-python and the Java client."""

import base64
from pathlib import Path

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record import MemoryRecords as PythonRecords
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

from riverrun.records.batch import crc_matches, read_header, stamp, stamp_log_append_time
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, NewRecord, Record, build_batch, read_records
from riverrun.records.validate import Limits, check_produced

RECORDS = [
    NewRecord(b"value", b"key", 1_700_000_000_000, (("header", b"1"), ("null", None))),
    NewRecord(None, b"tombstone", 1_700_000_000_100),
    NewRecord(b"", None, 1_699_999_999_999),
    NewRecord(b"v" * 100_000, b"large", 1_700_000_000_200, (("ü", b""),)),
]
EXPECTED = [
    Record(index, r.timestamp, r.key, r.value, r.headers) for index, r in enumerate(RECORDS)
]
LIMITS = Limits(bytes_max=1_000_000)


def as_read(batch: object) -> list[Record]:
    return [
        Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers))
        for r in batch  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("codec", list(Compression))
def test_batch_of_aiokafka_is_accepted_and_read(codec: Compression) -> None:
    builder = AioBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=12,
        producer_epoch=1,
        base_sequence=5,
        batch_size=999_999,
    )
    for index, record in enumerate(RECORDS):
        headers = list(record.headers)
        assert builder.append(index, record.timestamp, record.key, record.value, headers)
    batch = bytearray(builder.build())
    stored, header = check_produced(batch, LIMITS, 0)
    assert stored is batch
    assert header.compression == codec
    assert (header.producer_id, header.base_sequence) == (12, 5)
    assert read_records(batch) == EXPECTED


@pytest.mark.parametrize("codec", list(Compression))
def test_aiokafka_reads_our_batches(codec: Compression) -> None:
    batch = build_batch(RECORDS, base_offset=500, compression=codec)
    read = AioRecords(batch).next_batch()
    assert read is not None
    assert read.validate_crc()
    assert (read.base_offset, read.next_offset) == (500, 504)
    assert [r.offset for r in as_read(read)] == [500, 501, 502, 503]
    again = AioRecords(build_batch(RECORDS, compression=codec)).next_batch()
    assert again is not None
    assert as_read(again) == EXPECTED


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_kafka_python_reads_our_batches_and_we_read_its_batches(codec: Compression) -> None:
    builder = PythonBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=999_999,
    )
    for index, record in enumerate(RECORDS):
        headers = list(record.headers)
        assert builder.append(index, record.timestamp, record.key, record.value, headers)
    batch = bytearray(builder.build())
    assert check_produced(batch, LIMITS, 0)[0] is batch
    assert read_records(batch) == EXPECTED
    read = PythonRecords(build_batch(RECORDS, compression=codec)).next_batch()
    assert read.validate_crc()
    assert as_read(read) == EXPECTED


@pytest.mark.parametrize("source", list(Compression))
@pytest.mark.parametrize("target", list(Compression))
def test_aiokafka_reads_recompressed_batches(source: Compression, target: Compression) -> None:
    batch = bytearray(build_batch(RECORDS, compression=source))
    stored, _ = check_produced(batch, Limits(bytes_max=1_000_000, compression=target), 0)
    read = AioRecords(bytes(stored)).next_batch()
    assert read is not None
    assert read.validate_crc()
    assert as_read(read) == EXPECTED


def test_aiokafka_reads_stamped_batches() -> None:
    batch = bytearray(build_batch(RECORDS))
    stamp(batch, 0, 1000, 4)
    stamp_log_append_time(batch, 0, len(batch), 77)
    read = AioRecords(bytes(batch)).next_batch()
    assert read is not None
    assert read.validate_crc()
    assert read.timestamp_type == 1
    assert [(r.offset, r.timestamp) for r in as_read(read)] == [(1000 + i, 77) for i in range(4)]


@pytest.mark.parametrize("control", [ControlType.COMMIT, ControlType.ABORT])
def test_kafka_python_reads_control_batches(control: ControlType) -> None:
    marker = NewRecord(b"\0\0\0\0\0\1", control.key(), 5)
    batch = build_batch([marker], transactional=True, control=True, producer_id=3, producer_epoch=0)
    assert crc_matches(batch, 0, len(batch))
    assert read_header(batch).is_control
    read = PythonRecords(batch).next_batch()
    assert read.is_control_batch
    assert read.is_transactional
    (record,) = list(read)
    assert record.abort == (control is ControlType.ABORT)
    assert record.commit == (control is ControlType.COMMIT)


KAFKA_BATCHES = dict(
    line.split() for line in (Path(__file__).parent / "kafka_batches.txt").read_text().splitlines()
)
"""Name of a codec -> base64 of a batch built by MemoryRecords.withRecords of Apache Kafka 4.3.1."""


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_batch_of_the_java_client_is_accepted_and_read(name: str) -> None:
    batch = bytearray(base64.b64decode(KAFKA_BATCHES[name]))
    assert read_header(batch).base_offset == 5000
    expected = [
        Record(
            5000 + number,
            1_700_000_000_000 + number,
            None if number % 5 == 0 else b"key-%d" % number,
            None if number % 7 == 0 else b"value-%d" % number + b"-" * number,
            (("h", b"x%d" % number), ("null", None)),
        )
        for number in range(40)
    ]
    assert read_records(batch) == expected
    stamp(batch, 0, 0, -1)
    _, header = check_produced(batch, LIMITS, 0)
    assert header.compression == Compression[name.upper()]
