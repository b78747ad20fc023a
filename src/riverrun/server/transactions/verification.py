"""Asks transaction coordinators whether a partition belongs to a transaction (KIP-890).

The leader of a partition asks before the first batch of a transaction. Clients of version 1 added
the partition before, so the coordinator only looks it up. For clients of version 2 the question
adds it. All questions of one event-loop iteration to one coordinator share a request, and those
that come while a request is on its way share the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct

from riverrun.client.connection import UnsupportedApi
from riverrun.coordinator.hashing import partition_of
from riverrun.metadata.image import NO_LEADER, Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName, TopicPartition
from riverrun.model.names import TRANSACTIONS_TOPIC
from riverrun.ports.aio import OwnedTasks
from riverrun.server.transactions.settings import VerificationSettings
from riverrun.wire.messages.add_partitions_to_txn_request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from riverrun.wire.messages.add_partitions_to_txn_response import AddPartitionsToTxnResponse

log = structlog.get_logger("riverrun.transactions")

ABORTABLE_SINCE: Final = 11
"""The first version of Produce whose clients know TRANSACTION_ABORTABLE."""
IMPLICIT_SINCE: Final = 12
"""The first version of Produce that adds partitions to the transaction."""
UNREACHABLE: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""The coordinator has not decided. A later question may succeed."""

Outcomes = dict[TopicPartition, ErrorCode]
Send = Callable[[NodeId, AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]


class TransactionKey(Struct, frozen=True):
    """One transaction, as its producer names it, and the kind of the question."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_implicit: bool
    """Add the partitions, instead of only looking them up."""


class _Question(Struct):
    key: TransactionKey
    partitions: Sequence[TopicPartition]
    answer: asyncio.Future[Outcomes]


class TransactionVerifier:
    """The questions of one broker."""

    def __init__(
        self,
        *,
        coordinator_of: Callable[[str], NodeId | None],
        send: Send,
        tasks: OwnedTasks,
        settings: Callable[[], VerificationSettings],
    ) -> None:
        """``send`` raises OSError, UnsupportedApi or KafkaError."""
        self._settings = settings
        self._coordinator_of = coordinator_of
        self._send = send
        self._tasks = tasks
        self._queues: dict[NodeId, list[_Question]] = {}
        """Questions by coordinator. A node has an entry while a task sends to it."""

    async def ask(self, key: TransactionKey, partitions: Sequence[TopicPartition]) -> Outcomes:
        """The coordinator's code for each partition. Never raises.

        The coordinator may still be ending the producer's previous transaction. Clients would back
        off for long, so that is retried here for a short time.
        """
        settings = self._settings()
        if not settings.is_enabled and not key.is_implicit:
            return dict.fromkeys(partitions, ErrorCode.NONE)
        loop = asyncio.get_running_loop()
        retry_s = settings.retry_ms / 1000
        deadline = loop.time() + settings.retry_max_ms / 1000
        while True:
            outcomes = await self._ask_once(key, partitions)
            is_busy = ErrorCode.CONCURRENT_TRANSACTIONS in outcomes.values()
            if not is_busy or loop.time() + retry_s > deadline:
                return outcomes
            await asyncio.sleep(retry_s)

    async def _ask_once(
        self, key: TransactionKey, partitions: Sequence[TopicPartition]
    ) -> Outcomes:
        node = self._coordinator_of(key.transactional_id)
        if node is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answer: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()
        question = _Question(key, partitions, answer)
        queue = self._queues.get(node)
        if queue is None:
            self._queues[node] = [question]
            self._tasks.start(self._send_all(node))
        else:
            queue.append(question)
        return await answer

    async def _send_all(self, node: NodeId) -> None:
        """Send the questions to one coordinator until there are none.

        The task starts in the next event-loop iteration, so all questions of this one share the
        first request.
        """
        queue = self._queues[node]
        try:
            while queue:
                asked = _take(queue)
                code, found = await self._request(node, asked)
                for question in asked:
                    if not question.answer.done():
                        question.answer.set_result(_outcomes(question, code, found))
        finally:
            del self._queues[node]
            for question in queue:
                question.answer.cancel()  # the node stops

    async def _request(
        self, node: NodeId, asked: list[_Question]
    ) -> tuple[ErrorCode, dict[tuple[str, str, int], ErrorCode]]:
        """The error of the whole request, and the code of each partition of each transaction."""
        try:
            response = await self._send(node, _request_of(asked))
        except (OSError, UnsupportedApi) as error:
            log.info("transaction coordinator is unreachable", node=node, error=str(error))
            return ErrorCode.NETWORK_EXCEPTION, {}
        except KafkaError as error:
            return error.code, {}
        found = {
            (result.transactional_id, topic.name, one.partition_index): one.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for one in topic.results_by_partition
        }
        return response.error_code, found


def _take(queue: list[_Question]) -> list[_Question]:
    """Remove the questions of one request: results have no epoch, so each id has one key."""
    keys: dict[str, TransactionKey] = {}
    taken: list[_Question] = []
    left: list[_Question] = []
    for question in queue:
        key = keys.setdefault(question.key.transactional_id, question.key)
        (taken if key == question.key else left).append(question)
    queue[:] = left
    return taken


def _request_of(asked: list[_Question]) -> AddPartitionsToTxnRequest:
    transactions: dict[TransactionKey, dict[str, dict[int, None]]] = {}
    for question in asked:
        topics = transactions.setdefault(question.key, {})
        for partition in question.partitions:
            topics.setdefault(partition.topic, {})[partition.partition] = None
    return AddPartitionsToTxnRequest(
        transactions=tuple(
            AddPartitionsToTxnTransaction(
                transactional_id=key.transactional_id,
                producer_id=key.producer_id,
                producer_epoch=key.producer_epoch,
                verify_only=not key.is_implicit,
                topics=tuple(
                    AddPartitionsToTxnTopic(name=name, partitions=tuple(indexes))
                    for name, indexes in topics.items()
                ),
            )
            for key, topics in transactions.items()
        )
    )


def _outcomes(
    question: _Question, code: ErrorCode, found: dict[tuple[str, str, int], ErrorCode]
) -> Outcomes:
    if code is not ErrorCode.NONE:
        return dict.fromkeys(question.partitions, code)
    transactional_id = question.key.transactional_id
    return {
        partition: found.get(
            (transactional_id, partition.topic, partition.partition), ErrorCode.NETWORK_EXCEPTION
        )
        for partition in question.partitions
    }


def transaction_coordinator(image: Image, transactional_id: str) -> NodeId | None:
    """The leader of the partition that holds the state of a transactional id."""
    topic = image.topics_by_name.get(TopicName(TRANSACTIONS_TOPIC))
    if topic is None:
        return None
    leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
    return None if leader == NO_LEADER else leader


class NotVerified(KafkaError):
    """The transaction of a batch was not confirmed."""


def produce_error(outcome: ErrorCode, version: int) -> NotVerified | None:
    """The error of a Produce request of this version whose transaction was not confirmed.

    NOT_ENOUGH_REPLICAS is retried by all clients, and without a refresh of metadata.
    """
    if outcome is ErrorCode.NONE:
        return None
    if outcome in UNREACHABLE or (
        outcome is ErrorCode.CONCURRENT_TRANSACTIONS and version < IMPLICIT_SINCE
    ):
        return NotVerified(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {outcome.name}",
        )
    if outcome is ErrorCode.PRODUCER_FENCED:
        return NotVerified(ErrorCode.INVALID_PRODUCER_EPOCH)
    is_abortable = outcome is ErrorCode.TRANSACTION_ABORTABLE
    if outcome is ErrorCode.INVALID_TXN_STATE or (is_abortable and version < ABORTABLE_SINCE):
        return NotVerified(
            ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction"
        )
    return NotVerified(outcome)
