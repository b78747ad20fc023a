"""AddPartitionsToTxn: add partitions to transactions, or verify that they were added.

Behaviour:

* One bad partition fails its transaction: it gets its error, and the others
  OPERATION_NOT_ATTEMPTED.
* Versions 4 and 5 are for brokers: leaders ask before they append the first batch of a transaction
  (KIP-890). ``verify_only`` adds nothing, for clients of transaction version 1.
* A request of a client on an older connection is refused by closing it
  (``coordinator/transactions/shard.py``).

Versions 0 to 5:

* v2: PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH
* v3: flexible
* v4: several transactions, verification
* v5: TRANSACTION_ABORTABLE
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.coordinator.transactions.partitions import TransactionPartitions
from riverrun.coordinator.transactions.transaction import EPOCH_BUMP_SINCE
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests.init_producer_id import for_version
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from riverrun.wire.messages.add_partitions_to_txn_response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

FENCED_SINCE: Final = 2
BROKERS_SINCE: Final = 4

Codes = Mapping[tuple[str, int], ErrorCode]


async def handle(
    services: BrokerServices, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.api_version >= BROKERS_SINCE:
        services.access.require_cluster(context, AclOperation.CLUSTER_ACTION)
        return await respond_to_broker(services, request)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    try:
        denied = _denied(services, context, transaction)
        codes = denied or await _add(services, transaction, connection=context.connection_id)
    except SupersededConnection as error:
        raise Refused("superseded", f"{transaction.transactional_id}: {error}") from error
    except KafkaError as error:
        code = for_version(error, context.api_version, FENCED_SINCE).code
        codes = _all(transaction.topics, code)
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0, results_by_topic_v3_and_below=_results(transaction.topics, codes)
    )


async def respond_to_broker(
    services: BrokerServices, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """The response to a broker, also to this one."""

    async def answer(transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        try:
            codes = await _add(services, transaction, connection=None)
        except KafkaError as error:
            codes = _all(transaction.topics, error.code)
        return AddPartitionsToTxnResult(
            transactional_id=transaction.transactional_id,
            topic_results=_results(transaction.topics, codes),
        )

    results = await asyncio.gather(*(answer(one) for one in request.transactions))
    return AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_transaction=tuple(results))


def failed(
    request: AddPartitionsToTxnRequest, code: ErrorCode, message: str | None
) -> AddPartitionsToTxnResponse:
    """The fields of all versions; the codec sends those of one."""
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        error_code=code,
        results_by_topic_v3_and_below=_results(topics, _all(topics, code)),
    )


def _denied(
    services: BrokerServices, context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> Codes:
    """The codes of a request without the rights for it; empty if it has them. Raises
    ``KafkaError`` if the id itself is denied."""
    access, write = services.access, AclOperation.WRITE
    id_ = transaction.transactional_id
    access.require(context, write, ResourceType.TRANSACTIONAL_ID, id_)
    denied = [
        topic.name
        for topic in transaction.topics
        if not access.permits(context, write, ResourceType.TOPIC, topic.name)
    ]
    if not denied:
        return {}
    return {
        key: ErrorCode.TOPIC_AUTHORIZATION_FAILED if key[0] in denied else code
        for key, code in _all(transaction.topics, ErrorCode.OPERATION_NOT_ATTEMPTED).items()
    }


async def _add(
    services: BrokerServices,
    transaction: AddPartitionsToTxnTransaction,
    *,
    connection: int | None,
) -> Codes:
    """The code of each partition. ``connection`` is None for requests of brokers."""
    partitions: dict[str, tuple[int, ...]] = {}
    for topic in transaction.topics:
        known = partitions.get(topic.name, ())
        partitions[topic.name] = tuple(dict.fromkeys((*known, *topic.partitions)))
    wanted = TransactionPartitions(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        partitions=partitions,
    )
    unknown = _unknown(services.metadata.current, wanted)
    if unknown:
        return {key: unknown.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED) for key in wanted}
    if transaction.verify_only:
        return services.transactions.verify_partitions(wanted)
    await services.transactions.add_partitions(
        wanted,
        client_version=EPOCH_BUMP_SINCE if connection is None else 0,
        connection=connection,
    )
    return dict.fromkeys(wanted, ErrorCode.NONE)


def _unknown(image: Image, wanted: TransactionPartitions) -> Codes:
    return {
        (topic, index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic, index in wanted
        if index < 0 or image.partition(TopicName(topic), PartitionIndex(index)) is None
    }


def _all(topics: Iterable[AddPartitionsToTxnTopic], code: ErrorCode) -> Codes:
    return {(topic.name, index): code for topic in topics for index in topic.partitions}


def _results(
    topics: Iterable[AddPartitionsToTxnTopic], codes: Codes
) -> tuple[AddPartitionsToTxnTopicResult, ...]:
    return tuple(
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=tuple(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=codes[topic.name, index]
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
