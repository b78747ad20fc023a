"""Transactions as their coordinators and the leaders of partitions report them.

A coordinator knows the state of a transactional id. A leader knows which producers have an open
transaction in a partition. A transaction holds back the records after its first one from consumers
with read_committed: those between the last stable offset and the high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from riverrun.admin.cluster.replica_lag import leaders_by_node
from riverrun.admin.groups.admin import list_all as list_groups
from riverrun.admin.groups.listing import summarize
from riverrun.admin.requests import NotFound, alike, ask_each, check
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import TRANSACTION_COORDINATOR, ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.client.transactions import TransactionalProducer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_producers_request import (
    DescribeProducersRequest,
    TopicRequest,
)
from riverrun.wire.messages.describe_producers_response import DescribeProducersResponse
from riverrun.wire.messages.describe_transactions_request import DescribeTransactionsRequest
from riverrun.wire.messages.describe_transactions_response import DescribeTransactionsResponse
from riverrun.wire.messages.list_transactions_request import ListTransactionsRequest
from riverrun.wire.messages.list_transactions_response import ListTransactionsResponse

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
    "PrepareEpochFence", "Dead",
)  # fmt: skip
ONGOING, PREPARE_COMMIT, PREPARE_ABORT = "Ongoing", "PrepareCommit", "PrepareAbort"
OPEN_STATES = (ONGOING, PREPARE_COMMIT, PREPARE_ABORT)
NO_DURATION = -1
FORCE_TIMEOUT_MS = 1
"""As in kafka-transactions: every cluster accepts it, and the application sets its own again."""
DESCRIBED = (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
"""An id that was listed may expire before it is described."""

Silent = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTransaction:
    """A transaction that is open in one partition, as the leader reports it."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPartition:
    """A partition with an open transaction, and the records that it holds back."""

    partition: TopicPartition
    start_offset: int | None
    """The first record of the transaction; None if the leader does not report it as open."""
    stable_offset: int | None
    high_watermark: int | None
    groups: tuple[str, ...]
    """Groups that read the partition; those with read_committed wait."""

    @property
    def held(self) -> int | None:
        if self.stable_offset is None or self.high_watermark is None:
            return None
        return max(0, self.high_watermark - self.stable_offset)

    def described(self) -> dict[str, object]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start_offset,
            "last_stable_offset": self.stable_offset,
            "high_watermark": self.high_watermark,
            "records_held_back": self.held,
            "groups": list(self.groups),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedTransaction:
    """A transactional id, as its coordinator reports it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    coordinator: int
    partitions: tuple[TopicPartition, ...]

    def age_seconds(self, now_ms: int) -> float | None:
        if self.started_ms is None or self.state not in OPEN_STATES:
            return None
        return max(0, now_ms - self.started_ms) / 1000

    def cause(self, now_ms: int) -> str:
        """Why it is open, in words; what it waits for."""
        age = self.age_seconds(now_ms)
        if self.state == ONGOING and age is not None:
            left = self.timeout_ms / 1000 - age
            if left > 0:
                return (
                    f"its producer has not ended it; without a commit it is aborted in {left:.0f} s"
                )
            return "its producer has not ended it, and it has timed out: it is being aborted"
        if self.state in (PREPARE_COMMIT, PREPARE_ABORT):
            end = "commit" if self.state == PREPARE_COMMIT else "abort"
            return f"the {end} is decided; markers are missing in the partitions below"
        return "it is not open"

    def described(self, now_ms: int) -> dict[str, object]:
        return {
            "transactional_id": self.transactional_id,
            "state": self.state,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "timeout_ms": self.timeout_ms,
            "age_seconds": self.age_seconds(now_ms),
            "coordinator": self.coordinator,
            "cause": self.cause(now_ms),
            "partitions": [
                {"topic": at.topic, "partition": at.partition} for at in self.partitions
            ],
        }


def parse_states(texts: Sequence[str]) -> list[str]:
    """States by name, in any case. Raises ValueError: an unknown one would list nothing."""
    known = {state.lower(): state for state in STATES}
    for text in texts:
        if text.lower() not in known:
            raise ValueError(f"{text}: expected one of {', '.join(STATES)}")
    return [known[text.lower()] for text in texts]


async def list_transactions(
    pool: ConnectionPool,
    *,
    states: Sequence[str] = (),
    pattern: str | None = None,
    silent: Silent = lambda node: None,
) -> list[CoordinatedTransaction]:
    """The transactional ids of all coordinators. ``silent`` receives nodes whose transactions are
    missing or incomplete."""
    await pool.metadata(())
    message = ListTransactionsRequest(
        state_filters=tuple(states),
        duration_filter=NO_DURATION,
        transactional_id_pattern=pattern,
    )
    messages = dict.fromkeys(pool.cluster.nodes, message)
    answers, missing = await ask_each(pool, messages, ApiKey.LIST_TRANSACTIONS)
    for node in missing:
        silent(node)
    answer: ListTransactionsResponse
    by_node: dict[int, list[str]] = {}
    for node, answer in answers.items():
        check(answer.error_code, None, f"transactions of node {node}")
        if answer.transaction_states:
            by_node[node] = [row.transactional_id for row in answer.transaction_states]
    found = await _describe(pool, by_node, silent)
    return sorted(found, key=lambda row: row.transactional_id)


async def count_open(pool: ConnectionPool) -> int:
    """The number of open transactions, according to the coordinators that respond."""
    await pool.metadata(())
    message = ListTransactionsRequest(
        state_filters=tuple(OPEN_STATES), duration_filter=NO_DURATION, transactional_id_pattern=None
    )
    messages = dict.fromkeys(pool.cluster.nodes, message)
    answers, _ = await ask_each(pool, messages, ApiKey.LIST_TRANSACTIONS)
    return sum(len(answer.transaction_states) for answer in answers.values())


async def _describe(
    pool: ConnectionPool, by_node: Mapping[int, Sequence[str]], silent: Silent
) -> list[CoordinatedTransaction]:
    messages = {
        node: DescribeTransactionsRequest(transactional_ids=tuple(ids))
        for node, ids in by_node.items()
    }
    answers, missing = await ask_each(pool, messages, ApiKey.DESCRIBE_TRANSACTIONS)
    found: list[CoordinatedTransaction] = []
    for node, answer in answers.items():
        if any(row.error_code not in DESCRIBED for row in answer.transaction_states):
            missing.append(node)
        found += [
            _coordinated(row, node)
            for row in answer.transaction_states
            if row.error_code is ErrorCode.NONE
        ]
    for node in missing:
        silent(node)
    return found


def _coordinated(row: Any, node: int) -> CoordinatedTransaction:
    return CoordinatedTransaction(
        transactional_id=row.transactional_id,
        state=row.transaction_state,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        started_ms=row.transaction_start_time_ms if row.transaction_start_time_ms >= 0 else None,
        coordinator=node,
        partitions=tuple(
            sorted(_place(topic.topic, index) for topic in row.topics for index in topic.partitions)
        ),
    )


async def find_transaction(pool: ConnectionPool, transactional_id: str) -> CoordinatedTransaction:
    """Raises NotFound."""
    message = DescribeTransactionsRequest(transactional_ids=(transactional_id,))

    async def once() -> tuple[int, DescribeTransactionsResponse]:
        node = await pool.coordinator(transactional_id, TRANSACTION_COORDINATOR)
        answer = await pool.request_node(node, ApiKey.DESCRIBE_TRANSACTIONS, message)
        code = answer.transaction_states[0].error_code
        if code in RETRIABLE:
            raise KafkaError(code, f"transactional id {transactional_id}: {code.name}")
        return node, answer

    node, answer = await pool.try_again(once, transactional_id=transactional_id)
    row = answer.transaction_states[0]
    if row.error_code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        known = [each.transactional_id for each in await list_transactions(pool)]
        raise NotFound(
            f"there is no transactional id {transactional_id}{alike(transactional_id, known)}\n"
            "  `riverrun transactions list` lists all."
        )
    check(row.error_code, None, f"transactional id {transactional_id}")
    return _coordinated(row, node)


async def open_in(
    pool: ConnectionPool,
    places: Iterable[TopicPartition],
    silent: Silent = lambda node: None,
) -> list[PartitionTransaction]:
    """The open transactions of partitions, from their leaders. ``silent`` receives nodes that
    did not report on all partitions."""
    wanted = sorted(places)
    topics = (await pool.metadata(sorted({at.topic for at in wanted}))).topics if wanted else ()
    asked = dict.fromkeys(wanted)
    messages = {
        node: DescribeProducersRequest(
            topics=tuple(
                TopicRequest(
                    name=name,
                    partition_indexes=tuple(row for row in rows if _place(name, row) in asked),
                )
                for name, rows in led.items()
            )
        )
        for node, led in leaders_by_node(topics).items()
    }
    answers, missing = await ask_each(pool, messages, ApiKey.DESCRIBE_PRODUCERS)
    found: list[PartitionTransaction] = []
    answer: DescribeProducersResponse
    for node, answer in answers.items():
        rows = [row for topic in answer.topics for row in topic.partitions]
        if any(row.error_code in RETRIABLE for row in rows):
            missing.append(node)
        for topic in answer.topics:
            for row in topic.partitions:
                found += [
                    PartitionTransaction(
                        partition=_place(topic.name, row.partition_index),
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                        coordinator_epoch=each.coordinator_epoch,
                        start_offset=each.current_txn_start_offset,
                        last_timestamp_ms=each.last_timestamp,
                    )
                    for each in row.active_producers
                    if each.current_txn_start_offset >= 0
                ]
    for node in missing:
        silent(node)
    return sorted(found, key=lambda each: (each.partition, each.start_offset))


async def held_partitions(
    pool: ConnectionPool,
    places: Sequence[TopicPartition],
    starts: Mapping[TopicPartition, int],
) -> list[HeldPartition]:
    """The records that each partition holds back, and the groups that read it."""
    if not places:
        return []
    ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
    stable = await offsets_at(pool, dict.fromkeys(places, LATEST), is_committed_only=True)
    readers = await _readers(pool, places)
    return [
        HeldPartition(
            partition=at,
            start_offset=starts.get(at),
            stable_offset=stable.get(at),
            high_watermark=ends.get(at),
            groups=tuple(readers.get(at, ())),
        )
        for at in places
    ]


async def _readers(
    pool: ConnectionPool, places: Sequence[TopicPartition]
) -> dict[TopicPartition, list[str]]:
    """The groups that have committed offsets of each partition."""
    readers: dict[TopicPartition, list[str]] = {at: [] for at in places}
    for group in await summarize(pool, await list_groups(pool)):
        for at in places:
            if at in group.committed:
                readers[at].append(group.row.group)
    return readers


async def describe_transaction(
    pool: ConnectionPool, transactional_id: str
) -> tuple[CoordinatedTransaction, list[HeldPartition]]:
    """A transactional id, and what its open transaction holds back. Raises NotFound."""
    found = await find_transaction(pool, transactional_id)
    starts = {
        each.partition: each.start_offset
        for each in await open_in(pool, found.partitions)
        if each.producer_id == found.producer_id
    }
    return found, await held_partitions(pool, found.partitions, starts)


async def find_open_transaction(
    pool: ConnectionPool, transactional_id: str
) -> CoordinatedTransaction:
    """A transactional id whose transaction can be aborted. Raises NotFound, or KafkaError if it
    cannot."""
    found = await find_transaction(pool, transactional_id)
    check_can_abort(found)
    return found


def check_can_abort(found: CoordinatedTransaction) -> None:
    """Raise KafkaError if no transaction is open, or if its commit is decided."""
    name = found.transactional_id
    if found.state == PREPARE_COMMIT:
        problem = f"the commit of {name} is decided, so it cannot be aborted"
    elif found.state not in OPEN_STATES:
        problem = f"{name} has no open transaction: it is {found.state}"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TXN_STATE, problem)


async def force_end(pool: ConnectionPool, transactional_id: str) -> None:
    """Abort the open transaction of an id, and fence its producer."""
    await TransactionalProducer(pool, transactional_id, timeout_ms=FORCE_TIMEOUT_MS).init()


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
