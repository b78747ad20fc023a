"""Idempotent producers: accepted, duplicate and rejected batches (KIP-98)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import TRANSACTIONAL_BIT, BatchHeader
from riverrun.storage.markers import NewMarker, TransactionMarker
from riverrun.storage.producers import (
    AppendOrigin,
    CorruptSnapshot,
    Producers,
)

NOW_MS = 1_000_000
DAY_MS = 86_400_000


def header(
    sequence: int, count: int = 1, *, producer: int = 1, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp=5,
        max_timestamp=5,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
    )


class Partition:
    """Accepts batches as a log does."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.end_offset = 0

    def append(self, batch: BatchHeader) -> int | str:
        """The offset of a new batch, or a text for a duplicate or an error."""
        try:
            known = self.producers.check(batch, AppendOrigin.CLIENT)
        except KafkaError as error:
            return error.code.name
        if known is not None:
            return f"duplicate of {known.first_offset}"
        offset = self.end_offset
        self.producers.replay(batch, offset, b"", NOW_MS)
        self.end_offset += batch.last_offset_delta + 1
        return offset


def test_unknown_producer_may_start_with_any_sequence() -> None:
    assert Partition().append(header(77)) == 0


def test_gap_in_the_sequence_is_rejected() -> None:
    partition = Partition()
    assert partition.append(header(0, 3)) == 0
    assert partition.append(header(3)) == 3
    assert partition.append(header(5)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert partition.append(header(4)) == 4


def test_retry_of_the_last_five_batches_is_a_duplicate() -> None:
    partition = Partition()
    for sequence in range(7):
        partition.append(header(sequence))
    for sequence in range(2, 7):
        assert partition.append(header(sequence)) == f"duplicate of {sequence}"
    assert partition.append(header(1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_batch_of_another_size_is_not_a_duplicate() -> None:
    partition = Partition()
    partition.append(header(0, 3))
    assert partition.append(header(0, 2)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_old_epoch_is_fenced_and_new_epoch_starts_at_zero() -> None:
    partition = Partition()
    partition.append(header(0, epoch=5))
    assert partition.append(header(1, epoch=4)) == "INVALID_PRODUCER_EPOCH"
    assert partition.append(header(1, epoch=6)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert partition.append(header(0, epoch=6)) == 1
    assert partition.append(header(0, epoch=5)) == "INVALID_PRODUCER_EPOCH"


def test_sequence_wraps_to_zero() -> None:
    partition = Partition()
    partition.append(header(2**31 - 2, 2))
    assert partition.append(header(0)) == 2
    assert partition.append(header(2**31 - 2, 2)) == "duplicate of 0"


def test_batch_across_the_wrap_is_a_duplicate() -> None:
    partition = Partition()
    partition.append(header(2**31 - 1, 3))
    assert partition.append(header(2**31 - 1, 3)) == "duplicate of 0"
    assert partition.append(header(2)) == 3


def test_producers_expire_by_the_time_of_their_last_append() -> None:
    partition = Partition()
    partition.append(header(0, producer=1))
    partition.producers.replay(header(0, producer=2), 1, b"", NOW_MS + DAY_MS)
    assert partition.producers.expire(NOW_MS + DAY_MS - 1, DAY_MS) == 0
    assert partition.producers.expire(NOW_MS + DAY_MS, DAY_MS) == 1
    assert list(partition.producers.entries) == [2]
    assert partition.append(header(50, producer=1)) == 1


def test_producer_with_an_open_transaction_does_not_expire() -> None:
    partition = Partition()
    partition.append(header(0, transactional=True))
    assert partition.producers.expire(NOW_MS + 10 * DAY_MS, DAY_MS) == 0


def test_open_transaction_accepts_only_transactional_batches() -> None:
    partition = Partition()
    partition.append(header(0, transactional=True))
    assert partition.append(header(1)) == "INVALID_TXN_STATE"


def test_transaction_is_unstable_until_its_marker_is_committed() -> None:
    producers = Producers()
    producers.replay(header(0, producer=1, transactional=True), 10, b"", NOW_MS)
    producers.replay(header(0, producer=2, transactional=True), 11, b"", NOW_MS)
    assert producers.first_unstable == 10
    ended = producers.end_transaction(
        header(-1, producer=1), 12, TransactionMarker(False, 0), NOW_MS
    )
    assert ended is not None
    assert (ended.first_offset, ended.last_offset, ended.last_stable_offset) == (10, 12, 11)
    assert (
        producers.end_transaction(header(-1, producer=2), 13, TransactionMarker(True, 0), NOW_MS)
        is None
    )
    assert producers.first_unstable == 10
    producers.settle(13)
    assert producers.first_unstable == 11
    producers.settle(14)
    assert producers.first_unstable is None


def test_marker_of_a_replaced_coordinator_is_rejected() -> None:
    producers = Producers()
    producers.end_transaction(header(-1), 0, TransactionMarker(True, 7), NOW_MS)
    with pytest.raises(KafkaError) as refused:
        producers.check_marker(NewMarker(1, 0, TransactionMarker(True, 6)))
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


batches = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5), st.booleans()), max_size=40)


@given(batches)
def test_snapshot_contains_the_last_batch_of_every_producer(
    drawn: list[tuple[int, int, bool]],
) -> None:
    partition = Partition()
    sequences: dict[int, int] = {}
    for producer, count, transactional in drawn:
        sequence = sequences.get(producer, 0)
        partition.append(header(sequence, count, producer=producer, transactional=transactional))
        if partition.producers.entries[producer].last_sequence == sequence + count - 1:
            sequences[producer] = sequence + count
    producers = partition.producers
    loaded = Producers.from_snapshot(producers.snapshot(), NOW_MS)
    assert list(loaded.entries) == list(producers.entries)
    for producer, known in producers.entries.items():
        again = loaded.entries[producer]
        assert again.batches == known.batches[-1:]
        assert again.epoch == known.epoch
        assert again.transaction_start == known.transaction_start
    assert loaded.first_unstable == producers.first_unstable


@given(batches, st.integers(0, 100))
def test_roll_back_restores_the_state_of_the_shorter_log(
    drawn: list[tuple[int, int, bool]], offset: int
) -> None:
    whole, part = Partition(), Partition()
    sequences: dict[int, int] = {}
    for producer, count, _ in drawn:
        sequence = sequences.get(producer, 0)
        batch = header(sequence, count, producer=producer)
        if whole.end_offset + count <= offset and part.end_offset == whole.end_offset:
            part.append(batch)
        whole.append(batch)
        sequences[producer] = sequence + count
    if whole.producers.roll_back(part.end_offset):
        for producer, known in part.producers.entries.items():
            rolled = whole.producers.entries[producer]
            assert rolled.last_sequence == known.last_sequence
            assert known.batches[-len(rolled.batches) :] == rolled.batches


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_snapshot(data: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        Producers.from_snapshot(data, 0)


def test_snapshot_has_the_format_of_kafka() -> None:
    partition = Partition()
    partition.append(header(0, 3, producer=9, epoch=2))
    data = partition.producers.snapshot()
    assert data[:2] == b"\x00\x01"
    assert data[6:10] == b"\x00\x00\x00\x01"
    assert len(data) == 10 + 46
    damaged = bytearray(data)
    damaged[-1] ^= 1
    with pytest.raises(CorruptSnapshot, match="CRC"):
        Producers.from_snapshot(bytes(damaged), 0)
