"""The producer batches records, keeps order and sequence, and splits batches that are too large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.client import producer as producing
from riverrun.client.pool import ConnectionPool
from riverrun.client.producer import Producer
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import read_header
from riverrun.records.compression import Compression
from riverrun.records.record import NewRecord, read_records
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse

from .fakes import FakeCluster

QUICK = RetryPolicy(tries_max=4, total_s_max=2.0, backoff_s=0.001, backoff_s_max=0.002)


async def give_id(*_: Any) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=ErrorCode.NONE, producer_id=9, producer_epoch=0
    )


def run(scenario: Callable[[FakeCluster, ConnectionPool], Coroutine[Any, Any, None]]) -> None:
    async def wrapped() -> None:
        modules = {ApiKey.INIT_PRODUCER_ID: SimpleNamespace(handle=give_id)}
        async with (
            FakeCluster(modules=modules) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            await scenario(cluster, pool)

    asyncio.run(asyncio.wait_for(wrapped(), 20))


def values(batch: bytes) -> list[bytes | None]:
    return [record.value for record in read_records(batch)]


def test_one_batch_for_many_records() -> None:
    async def scenario(cluster: FakeCluster, pool: ConnectionPool) -> None:
        counts: list[int] = []
        producer = await Producer.open(
            pool,
            "t",
            compression=Compression.ZSTD,
            sent=lambda count, _size: counts.append(count),
        )
        for number in range(100):
            assert not producer.add(NewRecord(b"%d" % number))
        await producer.flush()
        (batch,) = cluster.nodes[1].batches
        assert values(batch) == [b"%d" % number for number in range(100)]
        assert read_header(batch).compression == Compression.ZSTD
        assert counts == [100]
        await producer.flush()
        assert len(cluster.nodes[1].batches) == 1

    run(scenario)


def test_add_returns_true_when_a_batch_is_full() -> None:
    async def scenario(_: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t")
        assert not producer.add(NewRecord(b"x" * 1000))
        assert producer.add(NewRecord(b"x" * producing.BATCH_BYTES))

    run(scenario)


def test_retry_keeps_its_sequence_and_the_next_batch_continues_it() -> None:
    async def scenario(cluster: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t")
        node = cluster.nodes[1]
        for value in (b"a", b"b"):
            producer.add(NewRecord(value))
        node.produce_codes = [ErrorCode.NOT_ENOUGH_REPLICAS, None, ErrorCode.NONE]
        await producer.flush()
        producer.add(NewRecord(b"c"))
        await producer.flush()
        headers = [read_header(batch) for batch in node.batches]
        assert [(header.producer_id, header.base_sequence) for header in headers] == [
            (9, 0),
            (9, 2),
        ]
        assert node.received.count(ApiKey.PRODUCE) == 4

    run(scenario)


def test_batch_that_is_too_large_is_split_in_order() -> None:
    async def scenario(cluster: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t")
        for number in range(5):
            producer.add(NewRecord(b"%d" % number))
        too_large = ErrorCode.MESSAGE_TOO_LARGE
        node = cluster.nodes[1]
        node.produce_codes = [too_large, too_large]
        await producer.flush()
        assert [values(batch) for batch in node.batches] == [
            [b"0"],
            [b"1"],
            [b"2", b"3", b"4"],
        ]
        assert [read_header(batch).base_sequence for batch in node.batches] == [0, 1, 2]

    run(scenario)


def test_record_that_is_too_large_is_an_error() -> None:
    async def scenario(cluster: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t")
        producer.add(NewRecord(b"x"))
        cluster.nodes[1].produce_codes = [ErrorCode.MESSAGE_TOO_LARGE]
        with pytest.raises(KafkaError) as failure:
            await producer.flush()
        assert failure.value.code is ErrorCode.MESSAGE_TOO_LARGE

    run(scenario)


def test_acks_one_uses_no_producer_id() -> None:
    async def scenario(cluster: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t", acks=1)
        producer.add(NewRecord(b"x"))
        await producer.flush()
        header = read_header(cluster.nodes[1].batches[0])
        assert (header.producer_id, header.base_sequence) == (-1, -1)

    run(scenario)


def test_missing_partition_is_an_error() -> None:
    async def scenario(_: FakeCluster, pool: ConnectionPool) -> None:
        producer = await Producer.open(pool, "t")
        with pytest.raises(KafkaError, match="no partition 7"):
            producer.add(NewRecord(b"x"), 7)
        with pytest.raises(KafkaError) as failure:
            await Producer.open(pool, "unknown")
        assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_refused_producer_id_names_the_missing_right_and_not_the_quorum() -> None:
    codes = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR]

    async def refuse(*_: Any) -> InitProducerIdResponse:
        code = codes.pop(0)
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1
        )

    async def scenario() -> None:
        modules = {ApiKey.INIT_PRODUCER_ID: SimpleNamespace(handle=refuse)}
        async with (
            FakeCluster(modules=modules) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            with pytest.raises(KafkaError, match="lacks the right Write on topic t") as denied:
                await Producer.open(pool, "t")
            assert denied.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "quorum" not in str(denied.value)
            with pytest.raises(KafkaError, match="has the quorum a leader"):
                await Producer.open(pool, "t")

    asyncio.run(asyncio.wait_for(scenario(), 20))
