"""TxnOffsetCommit: commit the offsets of a group as part of a transaction (KIP-98).

Behaviour:

* The offsets are pending until the marker of the transaction.
* The transaction coordinator must confirm the transaction before its first commit (KIP-890).
* Before version 5, a request of an older connection is refused by closing it
  (``coordinator/groups/offset_requests.py``).

Versions 0 to 5:

* v2: leader epoch
* v3: member, generation and instance (KIP-447)
* v4: TRANSACTION_ABORTABLE (KIP-890)
* v5: adds the offsets to the transaction (KIP-890)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from riverrun.coordinator.log import ProducerTransaction
from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicName
from riverrun.model.names import OFFSETS_TOPIC
from riverrun.replication.partition import Partition
from riverrun.replication.verification_attempts import is_unverified
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.services import BrokerServices
from riverrun.server.transactions.verification import UNREACHABLE, TransactionKey
from riverrun.storage.producers import NO_SEQUENCE
from riverrun.wire.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from riverrun.wire.messages.txn_offset_commit_response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

LOADING_SINCE: Final = 2
"""Earlier clients do not retry COORDINATOR_LOAD_IN_PROGRESS."""
ABORTABLE_SINCE: Final = 4
IMPLICIT_SINCE: Final = 5


async def handle(
    services: BrokerServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    refused: list[TxnOffsetCommitResponseTopic] = []
    accepted: list[TxnOffsetCommitRequestTopic] = []
    topics = services.metadata.current.topics_by_name
    access = services.access
    access.require(
        context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    )
    access.require(context, AclOperation.READ, ResourceType.GROUP, request.group_id)
    for topic in request.topics:
        if not access.permits(context, AclOperation.READ, ResourceType.TOPIC, topic.name):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(_results(topic, list(topic.partitions), code))
            continue
        known = topics.get(TopicName(topic.name))
        count = 0 if known is None else len(known.partitions)
        good = tuple(one for one in topic.partitions if 0 <= one.partition_index < count)
        bad = [one for one in topic.partitions if not 0 <= one.partition_index < count]
        if bad:
            refused.append(_results(topic, bad, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if good:
            accepted.append(replace(topic, partitions=good))
    if not accepted:
        return TxnOffsetCommitResponse(throttle_time_ms=0, topics=tuple(refused))
    wanted = replace(request, topics=tuple(accepted))
    try:
        committed = await _commit(services, context, wanted)
    except SupersededConnection as error:
        raise Refused("superseded", f"{request.transactional_id}: {error}") from error
    except KafkaError as error:
        committed = failed(wanted, _code(error.code, context.api_version), error.message)
    if not refused:
        return committed
    return replace(committed, topics=_merged(refused, committed.topics))


def failed(
    request: TxnOffsetCommitRequest, code: ErrorCode, message: str | None
) -> TxnOffsetCommitResponse:
    topics = tuple(_results(topic, topic.partitions, code) for topic in request.topics)
    return TxnOffsetCommitResponse(throttle_time_ms=0, topics=topics)


async def _commit(
    services: BrokerServices, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    groups = services.groups
    groups.runner_of(request.group_id)  # raises if this node does not coordinate the group
    partition = services.replicas.find(OFFSETS_TOPIC, groups.partition_of(request.group_id))
    if partition is None:
        raise KafkaError(ErrorCode.NOT_COORDINATOR)
    producer_id, epoch = request.producer_id, request.producer_epoch
    if not is_unverified(partition.log.producers, producer_id, epoch):
        transaction = ProducerTransaction(producer_id, epoch)
        return await groups.commit_offsets_in_transaction(
            request, transaction, connection=_speaker(context)
        )
    return await _verify_and_commit(services, context, request, partition)


def _speaker(context: RequestContext) -> int | None:
    """The connection, if only its age tells a late request of an earlier transaction."""
    return None if context.api_version >= IMPLICIT_SINCE else context.connection_id


async def _verify_and_commit(
    services: BrokerServices,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    partition: Partition,
) -> TxnOffsetCommitResponse:
    key = TransactionKey(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        context.api_version >= IMPLICIT_SINCE,
    )
    attempt, _ = partition.attempts.begin(
        key.producer_id, key.producer_epoch, NO_SEQUENCE, is_implicit=key.is_implicit
    )
    attempt.users += 1
    try:
        outcomes = await services.verifier.ask(key, [partition.name])
        outcome = outcomes[partition.name]
        if outcome is not ErrorCode.NONE:
            raise KafkaError(_unverified(outcome, context.api_version))
        transaction = ProducerTransaction(key.producer_id, key.producer_epoch, attempt)
        return await services.groups.commit_offsets_in_transaction(
            request, transaction, connection=_speaker(context)
        )
    finally:
        partition.attempts.release(attempt)


def _unverified(outcome: ErrorCode, version: int) -> ErrorCode:
    """The code for a transaction that was not confirmed, which the client can handle.

    COORDINATOR_LOAD_IN_PROGRESS is retried by all clients, and without looking for the coordinator.
    """
    if outcome in UNREACHABLE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if outcome is ErrorCode.CONCURRENT_TRANSACTIONS and version < IMPLICIT_SINCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if outcome is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if outcome is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return outcome


def _code(code: ErrorCode, version: int) -> ErrorCode:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


def _results(
    topic: TxnOffsetCommitRequestTopic,
    partitions: Iterable[TxnOffsetCommitRequestPartition],
    code: ErrorCode,
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=tuple(
            TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in partitions
        ),
    )


def _merged(
    refused: Iterable[TxnOffsetCommitResponseTopic],
    committed: Iterable[TxnOffsetCommitResponseTopic],
) -> tuple[TxnOffsetCommitResponseTopic, ...]:
    """The results of both, each topic once."""
    topics: dict[str, TxnOffsetCommitResponseTopic] = {}
    for topic in (*refused, *committed):
        first = topics.get(topic.name)
        topics[topic.name] = (
            topic
            if first is None
            else replace(first, partitions=first.partitions + topic.partitions)
        )
    return tuple(topics.values())
