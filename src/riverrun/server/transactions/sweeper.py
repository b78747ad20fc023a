"""Aborts transactions that no coordinator knows.

A transaction that stays open holds back all read_committed consumers of its partition. Verification
prevents transactions without a coordinator, but a coordinator may lose its state: by an unclean
election, or because operators delete ``__transaction_state``. So leaders look for transactions
that are open longer than any timeout allows, ask all coordinators about their producers, and end
those that none of them has on record with an ABORT marker, as ``kafka-transactions abort`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import structlog
from msgspec import Struct

from riverrun.client.connection import UnsupportedApi
from riverrun.metadata.image import NO_LEADER, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, TopicName, TopicPartition
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.model.settings import MINUTE_MS
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.replication.partition import Partition
from riverrun.storage.producers import ProducerEntry
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.list_transactions_request import ListTransactionsRequest
from riverrun.wire.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

LATE_BUFFER_MS: Final = 5 * MINUTE_MS
"""Coordinators may need this long to end a transaction after its timeout, as in Kafka."""
SWEPT_MAX: Final = 1000
"""Transactions that one sweep asks about."""
UNFINISHED: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")

log = structlog.get_logger("riverrun.transactions")

Request = Callable[[NodeId, ApiKey, Struct], Awaitable[Any]]
"""Sends a request to a broker. Raises OSError, UnsupportedApi or KafkaError."""


class LateTransaction(NamedTuple):
    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int


class TransactionSweeper:
    """Searches the partitions that this node leads."""

    def __init__(
        self,
        partitions: Iterable[Partition],
        *,
        node_id: NodeId,
        image: Callable[[], Image],
        request: Request,
        timeout_max_ms: Callable[[], int],
        interval_ms: Callable[[], int],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """``timeout_max_ms`` is the longest timeout that a producer may request."""
        self._partitions = partitions
        self._node_id = node_id
        self._image = image
        self._request = request
        self._timeout_max_ms = timeout_max_ms
        self._interval_ms = interval_ms
        self._clock = clock
        self._swept = metrics.counter(
            "riverrun_transactions_swept_total",
            "Transactions without a coordinator that this node has aborted.",
        )
        metrics.gauge(
            "riverrun_late_transaction_partitions",
            "Partitions led by this node with a transaction that is open longer than"
            " transaction.max.timeout.ms and five minutes.",
            lambda: len({one.partition: None for one in self.late()}),
        )

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_ms() / 1000)
            await self.sweep()

    def late(self) -> Iterator[LateTransaction]:
        """Transactions that are open for too long in partitions that this node leads."""
        opened_before = self._clock.now_ms() - self._timeout_max_ms() - LATE_BUFFER_MS
        for partition in self._partitions:
            producers = partition.log.producers
            if producers.first_unstable is None or not partition.is_leader:
                continue
            for producer in producers.open_transactions():
                if producer.seen_ms < opened_before:
                    yield _late(partition.name, producer)

    async def sweep(self) -> None:
        """Abort the late transactions that no coordinator knows."""
        late = list(islice(self.late(), SWEPT_MAX))
        if not late:
            return
        try:
            known = await self._known([one.producer_id for one in late])
        except (OSError, UnsupportedApi, KafkaError) as error:
            log.warning("late transactions not checked", count=len(late), error=str(error))
            return
        for one in late:
            if (one.producer_id, one.partition) in known:
                continue
            try:
                # Earlier aborts may have taken long, so both sides are looked at again.
                if await self._is_unknown(one) and one in self.late():
                    await self._abort(one)
            except (OSError, UnsupportedApi, KafkaError) as error:
                # For example, the marker is not committed in time. The next sweep tries again.
                log.warning(
                    "late transaction not aborted", partition=str(one.partition), error=str(error)
                )

    async def _is_unknown(self, late: LateTransaction) -> bool:
        return (late.producer_id, late.partition) not in await self._known([late.producer_id])

    async def _known(self, producer_ids: list[int]) -> dict[tuple[int, TopicPartition], None]:
        """The partitions of unfinished transactions of these producers, from all coordinators."""
        known: dict[tuple[int, TopicPartition], None] = {}
        wanted = ListTransactionsRequest(producer_id_filters=tuple(dict.fromkeys(producer_ids)))
        coordinators = _coordinators(self._image())
        for node in dict.fromkeys(leader for leader, _ in coordinators):
            listed = await self._request(node, ApiKey.LIST_TRANSACTIONS, wanted)
            if listed.error_code is not ErrorCode.NONE:
                raise KafkaError(listed.error_code)
            ids = tuple(one.transactional_id for one in listed.transaction_states)
            if not ids:
                continue
            described = await self._request(
                node,
                ApiKey.DESCRIBE_TRANSACTIONS,
                DescribeTransactionsRequest(transactional_ids=ids),
            )
            for state in described.transaction_states:
                if state.error_code is not ErrorCode.NONE:
                    raise KafkaError(state.error_code)
                if state.transaction_state in UNFINISHED:
                    for topic in state.topics:
                        for index in topic.partitions:
                            known[state.producer_id, TopicPartition(topic.topic, index)] = None
        if _coordinators(self._image()) != coordinators:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)  # one may have been asked too late
        return known

    async def _abort(self, late: LateTransaction) -> None:
        topic = WritableTxnMarkerTopic(
            name=late.partition.topic, partition_indexes=(late.partition.partition,)
        )
        marker = WritableTxnMarker(
            producer_id=late.producer_id,
            producer_epoch=late.producer_epoch,
            transaction_result=False,
            topics=(topic,),
            # A producer without an earlier marker has no coordinator epoch.
            coordinator_epoch=max(late.coordinator_epoch, 0),
        )
        request = WriteTxnMarkersRequest(markers=(marker,))
        response = await self._request(self._node_id, ApiKey.WRITE_TXN_MARKERS, request)
        code = response.markers[0].topics[0].partitions[0].error_code
        if code is ErrorCode.NONE:
            self._swept.value += 1
        log.warning(
            "transaction without a coordinator aborted",
            partition=str(late.partition),
            producer=late.producer_id,
            epoch=late.producer_epoch,
            start_offset=late.start_offset,
            result=code.name,
        )


def _late(partition: TopicPartition, producer: ProducerEntry) -> LateTransaction:
    assert producer.transaction_start is not None, f"{producer.producer_id} has no transaction"
    return LateTransaction(
        partition,
        producer.producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.transaction_start,
    )


def _coordinators(image: Image) -> list[tuple[NodeId, LeaderEpoch]]:
    """The coordinators of all transactional ids, with their leader epochs. Raises KafkaError if
    one is missing."""
    topic = image.topics_by_name.get(TopicName(TRANSACTIONS_TOPIC))
    if topic is None:
        return []
    if any(partition.leader == NO_LEADER for partition in topic.partitions):
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return [(partition.leader, partition.leader_epoch) for partition in topic.partitions]
