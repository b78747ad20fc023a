"""The transactional producer sends the requests of its protocol generation, and obeys errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.client.transactions import (
    TRANSACTION_VERSION,
    GroupMembership,
    ProducerFenced,
    TransactionalProducer,
    TransactionPhase,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.records.batch import read_header
from riverrun.records.record import NewRecord
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_offsets_to_txn_response import AddOffsetsToTxnResponse
from riverrun.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from riverrun.wire.messages.end_txn_response import EndTxnResponse
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from .fakes import FakeCluster

QUICK = RetryPolicy(tries_max=4, total_s_max=2.0, backoff_s=0.001, backoff_s_max=0.002)
PLACE = TopicPartition(TopicName("t"), PartitionIndex(0))
ONE = {PLACE: [NewRecord(b"a")]}


class FakeCoordinator:
    """Notes each request as (API, version), and returns the planned codes before it succeeds."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seen: list[tuple[str, int]] = []
        self.codes: dict[ApiKey, list[ErrorCode]] = {}

    def modules(self) -> dict[ApiKey, Any]:
        handlers: dict[ApiKey, Callable[[Any, Any, ErrorCode], Any]] = {
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.END_TXN: self._end,
        }
        return {
            key: SimpleNamespace(handle=self._noted(key, answer))
            for key, answer in handlers.items()
        }

    def _noted(self, key: ApiKey, answer: Callable[[Any, Any, ErrorCode], Any]) -> Any:
        def handle(_: Any, context: Any, request: Any) -> Any:
            self.seen.append((key.name, context.api_version))
            planned = self.codes.get(key)
            code = planned.pop(0) if planned else ErrorCode.NONE
            return answer(context, request, code)

        return handle

    def _init(self, _: Any, request: Any, code: ErrorCode) -> InitProducerIdResponse:
        self.epoch += 1 if code is ErrorCode.NONE else 0
        return InitProducerIdResponse(
            throttle_time_ms=0, error_code=code, producer_id=9, producer_epoch=self.epoch
        )

    def _add_partitions(self, _: Any, request: Any, code: ErrorCode) -> AddPartitionsToTxnResponse:
        topics = tuple(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=tuple(
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.v3_and_below_topics
        )
        return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=topics)

    def _add_offsets(self, _: Any, __: Any, code: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code)

    def _commit_offsets(self, _: Any, request: Any, code: ErrorCode) -> TxnOffsetCommitResponse:
        topics = tuple(
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=code
                    )
                    for row in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)

    def _end(self, context: Any, _: Any, code: ErrorCode) -> EndTxnResponse:
        if context.api_version >= 5 and code is ErrorCode.NONE:
            self.epoch += 1
        return EndTxnResponse(
            throttle_time_ms=0, error_code=code, producer_id=9, producer_epoch=self.epoch
        )


Story = Callable[[FakeCluster, FakeCoordinator, TransactionalProducer], Coroutine[Any, Any, None]]


def run(story: Story, *, version: int) -> None:
    async def wrapped() -> None:
        coordinator = FakeCoordinator()
        features = {TRANSACTION_VERSION: version}
        async with (
            FakeCluster(modules=coordinator.modules(), features=features) as cluster,
            ConnectionPool(cluster.bootstrap(), retry=QUICK) as pool,
        ):
            producer = TransactionalProducer(pool, "id")
            await producer.init()
            coordinator.seen.clear()
            await story(cluster, coordinator, producer)

    asyncio.run(asyncio.wait_for(wrapped(), 20))


def test_version_1_registers_partitions_and_groups_before_it_uses_them() -> None:
    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        await producer.send(ONE)
        await producer.send(ONE)
        await producer.send_offsets({PLACE: 3}, GroupMembership("g"))
        await producer.send_offsets({PLACE: 4}, GroupMembership("g"))
        await producer.commit()
        assert coordinator.seen == [
            ("ADD_PARTITIONS_TO_TXN", 3),
            ("ADD_OFFSETS_TO_TXN", 4),
            ("TXN_OFFSET_COMMIT", 4),
            ("TXN_OFFSET_COMMIT", 4),
            ("END_TXN", 4),
        ]

    run(story, version=1)


def test_version_2_registers_nothing_and_takes_the_epoch_of_each_end() -> None:
    async def story(
        cluster: FakeCluster, coordinator: FakeCoordinator, producer: TransactionalProducer
    ) -> None:
        for _ in range(2):
            await producer.begin()
            await producer.send(ONE)
            await producer.send_offsets({PLACE: 3}, GroupMembership("g"))
            await producer.commit()
        assert coordinator.seen == [("TXN_OFFSET_COMMIT", 5), ("END_TXN", 5)] * 2
        headers = [read_header(batch) for batch in cluster.nodes[1].batches]
        assert [(each.producer_epoch, each.base_sequence) for each in headers] == [(1, 0), (2, 0)]
        assert all(each.is_transactional for each in headers)

    run(story, version=2)


def test_version_1_continues_the_sequence_over_transactions() -> None:
    async def story(cluster: FakeCluster, _: Any, producer: TransactionalProducer) -> None:
        for _round in range(2):
            await producer.begin()
            await producer.send(ONE)
            await producer.commit()
        headers = [read_header(batch) for batch in cluster.nodes[1].batches]
        assert [(each.producer_epoch, each.base_sequence) for each in headers] == [(1, 0), (1, 1)]

    run(story, version=1)


def test_first_transaction_of_version_2_has_a_new_epoch() -> None:
    """With the old one, its batches would join the transaction of version 1 before it, whose
    markers may not be written yet.
    """

    async def story(
        cluster: FakeCluster, coordinator: FakeCoordinator, producer: TransactionalProducer
    ) -> None:
        node = cluster.nodes[1]
        node.features[TRANSACTION_VERSION] = 2  # clients learn of it with their next connection
        node.produce_codes = [None]  # breaks the connection
        for _ in range(3):
            await producer.begin()
            await producer.send(ONE)
            await producer.commit()
        assert coordinator.seen == [
            ("ADD_PARTITIONS_TO_TXN", 3),
            ("END_TXN", 4),
            ("INIT_PRODUCER_ID", 5),
            ("END_TXN", 5),
            ("END_TXN", 5),
        ]
        headers = [read_header(batch) for batch in node.batches]
        epochs = [(each.producer_epoch, each.base_sequence) for each in headers]
        assert epochs == [(1, 0), (2, 0), (3, 0)]

    run(story, version=1)


@pytest.mark.parametrize("version", [1, 2])
def test_empty_transaction_sends_nothing(version: int) -> None:
    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        await producer.commit()
        await producer.begin()
        await producer.abort()
        assert coordinator.seen == []

    run(story, version=version)


@pytest.mark.parametrize("version", [1, 2])
def test_end_is_repeated_while_the_transaction_before_it_ends(version: int) -> None:
    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        await producer.send(ONE)
        coordinator.seen.clear()
        coordinator.codes[ApiKey.END_TXN] = [
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ]
        await producer.commit()
        assert len(coordinator.seen) == 4
        assert producer.phase is TransactionPhase.READY

    run(story, version=version)


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_fenced_producer_sends_nothing_more(code: ErrorCode) -> None:
    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        await producer.send(ONE)
        coordinator.codes[ApiKey.END_TXN] = [code]
        with pytest.raises(ProducerFenced):
            await producer.commit()
        coordinator.seen.clear()
        for call in (producer.begin, producer.commit, producer.abort):
            with pytest.raises(ProducerFenced):
                await call()
        assert coordinator.seen == []

    run(story, version=1)


def test_failed_send_must_be_aborted_and_gets_a_new_epoch() -> None:
    """A late copy of the failed batch must not join the next transaction (KIP-360)."""

    async def story(
        cluster: FakeCluster, coordinator: FakeCoordinator, producer: TransactionalProducer
    ) -> None:
        await producer.begin()
        cluster.nodes[1].produce_codes = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        with pytest.raises(KafkaError):
            await producer.send(ONE)
        with pytest.raises(KafkaError, match="failed"):
            await producer.commit()
        coordinator.seen.clear()
        await producer.abort()
        assert coordinator.seen == [("END_TXN", 4), ("INIT_PRODUCER_ID", 5)]
        await producer.begin()
        await producer.send(ONE)
        header = read_header(cluster.nodes[1].batches[-1])
        assert (header.producer_epoch, header.base_sequence) == (2, 0)

    run(story, version=1)


def test_abort_of_a_transaction_that_never_began_is_no_error() -> None:
    """The failed request was the one that begins it at the coordinator."""

    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        coordinator.codes[ApiKey.ADD_PARTITIONS_TO_TXN] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        with pytest.raises(KafkaError):
            await producer.send(ONE)
        coordinator.codes[ApiKey.END_TXN] = [ErrorCode.INVALID_TXN_STATE]
        await producer.abort()
        assert producer.phase is TransactionPhase.READY

    run(story, version=1)


def test_offsets_of_an_old_generation_leave_the_transaction_to_be_aborted() -> None:
    async def story(_: Any, coordinator: FakeCoordinator, producer: TransactionalProducer) -> None:
        await producer.begin()
        coordinator.codes[ApiKey.TXN_OFFSET_COMMIT] = [ErrorCode.ILLEGAL_GENERATION]
        with pytest.raises(KafkaError):
            await producer.send_offsets({PLACE: 3}, GroupMembership("g", 1, "m"))
        with pytest.raises(KafkaError, match="failed"):
            await producer.commit()
        await producer.abort()
        assert producer.phase is TransactionPhase.READY

    run(story, version=2)
