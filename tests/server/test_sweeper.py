"""The sweeper aborts late transactions that no coordinator knows, and no others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from riverrun.metadata.image import NO_LEADER, Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicId, TopicName
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.ports.metrics import Metrics
from riverrun.server.requests import write_txn_markers
from riverrun.server.transactions.broker_channels import LOCAL_CONNECTION
from riverrun.server.transactions.sweeper import LATE_BUFFER_MS, TransactionSweeper
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import describe_transactions_response as described
from riverrun.wire.messages import list_transactions_response as listed
from tests.server.requests.leader_node import ME, Node
from tests.server.requests.test_transactional_produce import TransactionalNode, data, on
from tests.storage.machines import NOW_MS

TIMEOUT_MS = 60_000
LATE_MS = NOW_MS + TIMEOUT_MS + LATE_BUFFER_MS + 1


class Sweep:
    """A leader with an open transaction of producer 5, and coordinators that answer."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now_ms = LATE_MS
        self.known: list[tuple[int, str]] = []
        """Producer id and state of the coordinators' transactions in the partition."""
        self.code = ErrorCode.NONE
        self.asked: list[Callable[[], Awaitable[object]]] = []
        """Called when the coordinators are asked for the first, second, ... time."""
        self.failure: Exception | None = None
        """Raised by the request that writes the marker."""
        self.image = with_coordinators(node.image, (ME,))
        self.metrics = Metrics()
        self.sweeper = TransactionSweeper(
            node.replicas,
            node_id=ME,
            image=lambda: self.image,
            request=self._request,
            timeout_max_ms=lambda: TIMEOUT_MS,
            interval_ms=lambda: 1000,
            clock=SimpleNamespace(now_ms=lambda: self.now_ms, monotonic=lambda: 0.0),
            metrics=self.metrics,
        )

    async def _request(self, node: NodeId, key: ApiKey, message: Any) -> Any:
        if key is ApiKey.WRITE_TXN_MARKERS:
            if self.failure is not None:
                raise self.failure
            return await write_txn_markers.handle(self.node.services, on(LOCAL_CONNECTION), message)
        if key is ApiKey.LIST_TRANSACTIONS:
            if self.asked:
                await self.asked.pop(0)()
            return listed.ListTransactionsResponse(
                throttle_time_ms=0,
                error_code=self.code,
                transaction_states=tuple(
                    listed.TransactionState(
                        transactional_id=f"id-{producer}",
                        producer_id=producer,
                        transaction_state=state,
                    )
                    for producer, state in self.known
                    if producer in message.producer_id_filters
                ),
            )
        return described.DescribeTransactionsResponse(
            throttle_time_ms=0,
            transaction_states=tuple(
                described.TransactionState(
                    error_code=ErrorCode.NONE,
                    transactional_id=f"id-{producer}",
                    transaction_state=state,
                    transaction_timeout_ms=TIMEOUT_MS,
                    transaction_start_time_ms=0,
                    producer_id=producer,
                    producer_epoch=0,
                    topics=(described.TopicData(topic="topic", partitions=(0,)),),
                )
                for producer, state in self.known
            ),
        )

    @property
    def is_open(self) -> bool:
        return self.node.partition().log.producers.first_unstable is not None


def with_coordinators(image: Image, leaders: tuple[NodeId, ...]) -> Image:
    pattern = image.topics_by_name[TopicName("topic")].partitions[0]
    topic = TopicImage(
        name=TopicName(TRANSACTIONS_TOPIC),
        id=TopicId(UUID(int=9)),
        partitions=tuple(replace(pattern, leader=leader) for leader in leaders),
    )
    return replace(image, topics_by_name={**image.topics_by_name, topic.name: topic})


@pytest.mark.parametrize(
    ("changes", "is_swept"),
    [
        ({}, True),
        ({"now_ms": LATE_MS - 2}, False),
        ({"known": [(5, "Ongoing")]}, False),
        ({"known": [(5, "PrepareAbort")]}, False),
        ({"known": [(5, "CompleteCommit")]}, True),
        ({"known": [(6, "Ongoing")]}, True),
        ({"code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "known": []}, False),
    ],
)
def test_only_late_transactions_without_a_coordinator_are_aborted(
    changes: dict[str, Any], is_swept: bool
) -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)
        for name, value in changes.items():
            setattr(sweep, name, value)
        await sweep.sweeper.sweep()
        assert sweep.is_open is not is_swept

    node.run(scenario())


def test_nothing_is_aborted_while_a_coordinator_has_no_leader() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)
        sweep.image = with_coordinators(node.image, (ME, NO_LEADER))
        await sweep.sweeper.sweep()
        assert sweep.is_open

    node.run(scenario())


@pytest.mark.parametrize("failure", [TimeoutError(), KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_abort_that_fails_is_repeated_by_the_next_sweep(failure: Exception) -> None:
    """A failed sweep would stop the node."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)
        sweep.failure = failure
        await sweep.sweeper.sweep()
        assert sweep.is_open
        sweep.failure = None
        await sweep.sweeper.sweep()
        assert not sweep.is_open

    node.run(scenario())


def test_transaction_that_ends_meanwhile_is_not_aborted() -> None:
    """The producer has begun another one, of which its coordinator knows."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)

        async def nothing() -> None: ...

        async def next_transaction() -> None:
            await node.mark()
            await node.send(data(1))

        sweep.asked = [nothing, next_transaction]
        await sweep.sweeper.sweep()
        assert sweep.is_open

    node.run(scenario())


def test_transaction_that_a_coordinator_learns_of_meanwhile_is_not_aborted() -> None:
    """Earlier aborts of the same sweep may take long."""
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)

        async def nothing() -> None: ...

        async def add() -> None:
            sweep.known = [(5, "Ongoing")]

        sweep.asked = [nothing, add]
        await sweep.sweeper.sweep()
        assert sweep.is_open

    node.run(scenario())


def test_nothing_is_aborted_if_a_coordinator_moves_while_it_is_asked() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)

        async def move() -> None:
            sweep.image = with_coordinators(node.image, (NodeId(2),))

        sweep.asked = [move]
        await sweep.sweeper.sweep()
        assert sweep.is_open

    node.run(scenario())


def test_late_partitions_are_counted() -> None:
    node = TransactionalNode()

    async def scenario() -> None:
        await node.send(data(0))
        sweep = Sweep(node)
        assert [one.partition.topic for one in sweep.sweeper.late()] == ["topic"]
        await sweep.sweeper.sweep()
        assert not list(sweep.sweeper.late())
        assert sweep.metrics.counter("riverrun_transactions_swept_total", "").value == 1

    node.run(scenario())
