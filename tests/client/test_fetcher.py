"""The fetcher returns every record once and in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.client.fetcher import FetchedRecords, Fetcher, read_from
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.batch import CorruptBatch
from riverrun.records.compression import Compression
from riverrun.records.record import ControlType, NewRecord, build_batch
from riverrun.wire.apis import ApiKey
from riverrun.wire.fetch import FetchResult, encode_fetch_response, parse_fetch
from riverrun.wire.messages.list_offsets_response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

from .fakes import FakeCluster

QUICK = RetryPolicy(tries_max=4, total_s_max=2.0, backoff_s=0.001, backoff_s_max=0.002)
PLACE = TopicPartition(TopicName("t"), PartitionIndex(0))


def batch(base_offset: int, *values: bytes, **options: Any) -> bytes:
    return build_batch([NewRecord(value) for value in values], base_offset=base_offset, **options)


def test_fetch_from_inside_a_batch_skips_earlier_records() -> None:
    data = batch(0, b"a", b"b", compression=Compression.LZ4) + batch(2, b"c")
    records, position = read_from(data, 1)
    assert [(record.offset, record.value) for record in records] == [(1, b"b"), (2, b"c")]
    assert position == 3
    assert read_from(data, 3) == ([], 3)


def test_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    data = batch(0, b"a") + batch(1, b"b" * 100)[:-1]
    assert [record.offset for record in read_from(data, 0)[0]] == [0]
    assert read_from(data, 0)[1] == 1


def marker(base_offset: int, producer_id: int, kind: ControlType) -> bytes:
    return build_batch(
        [NewRecord(b"", kind.key())],
        base_offset=base_offset,
        producer_id=producer_id,
        transactional=True,
        control=True,
    )


def in_transaction(base_offset: int, producer_id: int, *values: bytes) -> bytes:
    return batch(base_offset, *values, producer_id=producer_id, transactional=True)


def test_records_of_aborted_transactions_are_left_out() -> None:
    data = (
        in_transaction(0, 1, b"aborted")
        + in_transaction(1, 2, b"kept")
        + marker(2, 1, ControlType.ABORT)
        + in_transaction(3, 1, b"next")
        + batch(4, b"plain")
        + marker(5, 2, ControlType.COMMIT)
        + marker(6, 1, ControlType.COMMIT)
    )
    records, position = read_from(data, 0, [(1, 0)])
    assert [record.value for record in records] == [b"kept", b"next", b"plain"]
    assert position == 7
    assert [record.offset for record in read_from(data, 0)[0]] == [0, 1, 3, 4]


def test_fetch_from_inside_an_aborted_transaction_leaves_out_its_rest() -> None:
    data = in_transaction(4, 1, b"a", b"b") + marker(6, 1, ControlType.ABORT) + batch(7, b"c")
    records, position = read_from(data, 5, [(1, 2)])
    assert [record.value for record in records] == [b"c"]
    assert position == 8


def test_aborted_transactions_are_found_in_any_order() -> None:
    """Two aborted transactions of one producer, listed in the wrong order."""
    data = (
        in_transaction(0, 1, b"first")
        + marker(1, 1, ControlType.ABORT)
        + in_transaction(2, 1, b"committed")
        + marker(3, 1, ControlType.COMMIT)
        + in_transaction(4, 1, b"second")
        + marker(5, 1, ControlType.ABORT)
    )
    records, _ = read_from(data, 0, [(1, 4), (1, 0)])
    assert [record.value for record in records] == [b"committed"]


def test_control_batches_are_skipped() -> None:
    key = ControlType.COMMIT.key()
    marker = build_batch(
        [NewRecord(b"", key)], base_offset=1, producer_id=1, transactional=True, control=True
    )
    records, position = read_from(batch(0, b"a") + marker, 0)
    assert [record.offset for record in records] == [0]
    assert position == 2


def test_corrupt_batch_is_rejected() -> None:
    data = bytearray(batch(0, b"aaaa"))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        read_from(bytes(data), 0)


class Log:
    """Responds to Fetch from a list of (error, records), then without records."""

    def __init__(self, *responses: tuple[ErrorCode, bytes]) -> None:
        self.responses = list(responses)
        self.received: list[int] = []

    def handle_frame(self, _: Any, context: Any, buffer: memoryview, at: int) -> Any:
        (wanted,) = parse_fetch(buffer, at, context.api_version).partitions
        self.received.append(wanted.offset)
        code, records = self.responses.pop(0) if self.responses else (ErrorCode.NONE, b"")
        result = FetchResult(wanted.topic, wanted.partition, code, 9, 9, 0, records=records)
        return encode_fetch_response(context.api_version, [result])


async def earliest(*_: Any) -> ListOffsetsResponse:
    row = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NONE, offset=5)
    return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name="t", partitions=(row,)),))


def poll(log: Log, times: int, lost: list[Any] | None = None) -> list[list[FetchedRecords]]:
    async def scenario() -> list[list[FetchedRecords]]:
        modules = {
            ApiKey.FETCH: SimpleNamespace(handle_frame=log.handle_frame),
            ApiKey.LIST_OFFSETS: SimpleNamespace(handle=earliest),
        }
        async with (
            FakeCluster(modules=modules) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            fetcher = Fetcher(pool, lost=lambda *what: (lost or []).append(what))
            fetcher.seek({PLACE: 0})
            return [await fetcher.poll() for _ in range(times)]

    return asyncio.run(asyncio.wait_for(scenario(), 20))


def test_poll_continues_where_the_last_one_ended() -> None:
    log = Log((ErrorCode.NONE, batch(0, b"a", b"b")), (ErrorCode.NONE, batch(2, b"c")))
    polled = poll(log, 3)
    assert [[r.value for p in fetched for r in p.records] for fetched in polled] == [
        [b"a", b"b"],
        [b"c"],
        [],
    ]
    assert log.received == [0, 2, 3]


def test_retriable_error_is_retried() -> None:
    log = Log((ErrorCode.NOT_LEADER_OR_FOLLOWER, b""), (ErrorCode.NONE, batch(0, b"a")))
    ((fetched,),) = poll(log, 1)
    assert fetched.next_offset == 1


def test_records_deleted_by_retention_are_reported_and_skipped() -> None:
    lost: list[Any] = [None]
    log = Log((ErrorCode.OFFSET_OUT_OF_RANGE, b""), (ErrorCode.NONE, batch(5, b"f")))
    polled = poll(log, 2, lost)
    assert polled[0] == []
    assert [record.offset for record in polled[1][0].records] == [5]
    assert lost[1:] == [(PLACE, 0, 5)]


def test_fatal_error_is_raised() -> None:
    with pytest.raises(KafkaError) as failure:
        poll(Log((ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")), 1)
    assert failure.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
