"""Requests to transaction coordinators for transactions that other processes have opened.

``client.transactions`` has a producer for a transaction that one process begins and ends. Here
tasks begin transactions, and a driver ends them by their producer id and epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from pyspark_riverrun.delivery.record import OpenTransaction
from riverrun.client.connection import Connection, UnsupportedApi
from riverrun.client.pool import TRANSACTION_COORDINATOR, ConnectionPool
from riverrun.client.transactions import (
    ADD_PARTITIONS_CLIENT_MAX,
    END_TXN_V1_MAX,
    TRANSACTION_VERSION,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from riverrun.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse
from riverrun.wire.messages.end_txn_request import EndTxnRequest
from riverrun.wire.messages.end_txn_response import EndTxnResponse
from riverrun.wire.messages.init_producer_id_request import InitProducerIdRequest
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse
from riverrun.wire.messages.list_transactions_request import ListTransactionsRequest
from riverrun.wire.messages.list_transactions_response import ListTransactionsResponse

CONCURRENT_WAIT_S: Final = 0.02
ONGOING: Final = "Ongoing"
NOT_OPEN: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""The transaction has ended, or its id was used again, or it has expired."""


class TransactionIdentity(Struct, frozen=True, kw_only=True):
    """A producer of one transaction."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_version_2: bool
    """Whether produce requests add partitions to the transaction (KIP-890)."""


async def open_transaction(
    pool: ConnectionPool, transactional_id: str, timeout_ms: int
) -> TransactionIdentity:
    """Get a producer id. Aborts the open transaction of an earlier producer with this id."""

    async def once() -> TransactionIdentity:
        connection = await _coordinator(pool, transactional_id)
        message = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        response: InitProducerIdResponse = await _past_concurrent(
            pool, lambda: connection.request(ApiKey.INIT_PRODUCER_ID, message)
        )
        if response.error_code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
            raise KafkaError(
                response.error_code,
                f"kafka.transaction.timeout.ms={timeout_ms} is larger than the setting "
                "transaction.max.timeout.ms of the brokers",
            )
        _check(response.error_code, transactional_id)
        return TransactionIdentity(
            transactional_id=transactional_id,
            producer_id=response.producer_id,
            epoch=response.producer_epoch,
            is_version_2=connection.features.get(TRANSACTION_VERSION, 0) >= 2,
        )

    return await pool.try_again(once, transactional_id=transactional_id)


async def add_partition(
    pool: ConnectionPool, identity: TransactionIdentity, at: TopicPartition
) -> None:
    """Tell the coordinator that the transaction writes to a partition (version 1 only)."""

    async def once() -> None:
        connection = await _coordinator(pool, identity.transactional_id)
        topic = AddPartitionsToTxnTopic(name=at.topic, partitions=(at.partition,))
        message = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=identity.transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=(topic,),
        )
        version = connection.version_of(
            ApiKey.ADD_PARTITIONS_TO_TXN, at_most=ADD_PARTITIONS_CLIENT_MAX
        )
        response: AddPartitionsToTxnResponse = await connection.request(
            ApiKey.ADD_PARTITIONS_TO_TXN, message, version=version
        )
        row = response.results_by_topic_v3_and_below[0].results_by_partition[0]
        _check(row.partition_error_code, f"{identity.transactional_id}, {at}")

    await pool.try_again(once, transactional_id=identity.transactional_id)


async def end_transaction(
    pool: ConnectionPool, open_: OpenTransaction, *, is_commit: bool
) -> ErrorCode:
    """End a transaction, and wait until its records are visible. Repeating it does no harm.

    Returns NONE, or a code of ``NOT_OPEN`` if there is no such open transaction.
    """

    async def once() -> ErrorCode:
        connection = await _coordinator(pool, open_.transactional_id)
        is_version_2 = connection.features.get(TRANSACTION_VERSION, 0) >= 2
        message = EndTxnRequest(
            transactional_id=open_.transactional_id,
            producer_id=open_.producer_id,
            producer_epoch=open_.epoch,
            committed=is_commit,
        )
        version = connection.version_of(
            ApiKey.END_TXN, at_most=None if is_version_2 else END_TXN_V1_MAX
        )
        # The coordinator answers before the markers are written. The same request once more is
        # answered with CONCURRENT_TRANSACTIONS until then.
        for _ in range(2):
            response: EndTxnResponse = await _past_concurrent(
                pool, lambda: connection.request(ApiKey.END_TXN, message, version=version)
            )
            if response.error_code in NOT_OPEN:
                return response.error_code
            _check(response.error_code, open_.transactional_id)
        return ErrorCode.NONE

    return await pool.try_again(once, transactional_id=open_.transactional_id)


async def fence_transaction(pool: ConnectionPool, transactional_id: str, timeout_ms: int) -> None:
    """Abort whatever is open under an id. Does not wait for the end of the abort."""

    async def once() -> None:
        connection = await _coordinator(pool, transactional_id)
        message = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        response: InitProducerIdResponse = await connection.request(
            ApiKey.INIT_PRODUCER_ID, message
        )
        if response.error_code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            _check(response.error_code, transactional_id)

    await pool.try_again(once, transactional_id=transactional_id)


async def ongoing_transactions(pool: ConnectionPool) -> list[str]:
    """The ids of all open transactions, as far as the nodes that answer know them."""
    await pool.try_again(lambda: pool.metadata(()))
    found = await run_together(_ongoing_of(pool, node) for node in list(pool.cluster.nodes))
    return sorted(name for names in found for name in names)


async def _ongoing_of(pool: ConnectionPool, node: int) -> list[str]:
    message = ListTransactionsRequest(state_filters=(ONGOING,))
    try:
        response: ListTransactionsResponse = await pool.request_node(
            node, ApiKey.LIST_TRANSACTIONS, message
        )
    except (OSError, KafkaError, UnsupportedApi):
        return []  # its transactions time out, or the next delivery finds them
    return [one.transactional_id for one in response.transaction_states]


async def _coordinator(pool: ConnectionPool, transactional_id: str) -> Connection:
    return await pool.node_connection(
        await pool.coordinator(transactional_id, TRANSACTION_COORDINATOR)
    )


async def _past_concurrent(pool: ConnectionPool, request: Callable[[], Any]) -> Any:
    """Repeat a request while the previous transaction of the id ends."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + pool.retry.total_s_max
    while True:
        response = await request()
        is_concurrent = response.error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        if not is_concurrent or loop.time() > give_up_at:
            return response
        await asyncio.sleep(CONCURRENT_WAIT_S)


def _check(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"transaction {what}: {code.name}")
