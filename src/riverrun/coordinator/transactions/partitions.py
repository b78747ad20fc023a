"""AddPartitionsToTxn and AddOffsetsToTxn: the partitions that a transaction may write to.

The first partition begins the transaction. Leaders verify that a partition was added before they
append the first batch of a transaction to it, so that every open transaction has an entry here and
is ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from riverrun.coordinator.transactions.transaction import (
    NOT_STARTED,
    Transaction,
    TransactionStatus,
    is_current_epoch,
    is_next_producer,
)
from riverrun.coordinator.transactions.turn import PartitionsAdded, RequestOutcome
from riverrun.model.errors import ErrorCode, KafkaError


class TransactionPartitions(Struct, frozen=True, kw_only=True):
    """Partitions of a transaction, with the producer that claims to run it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Mapping[str, tuple[int, ...]]
    """Partition indexes by topic."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        for topic, indexes in self.partitions.items():
            for index in indexes:
                yield topic, index


def add_partitions(
    known: Transaction | None,
    request: TransactionPartitions,
    now_ms: int,
    *,
    client_version: int,
    partitions_max: int,
) -> RequestOutcome:
    transaction = _checked(known, request)
    is_ongoing = transaction.status is TransactionStatus.ONGOING
    added = _merged(transaction.partitions if is_ongoing else {}, request.partitions)
    if is_ongoing and added == transaction.partitions:
        return RequestOutcome(response=PartitionsAdded())
    value = replace(
        transaction,
        status=TransactionStatus.ONGOING,
        partitions=added,
        updated_ms=now_ms,
        started_ms=transaction.started_ms if is_ongoing else now_ms,
        client_version=client_version,
    )
    assert value.started_ms != NOT_STARTED, "a transaction without a start"
    if value.partition_count > partitions_max:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    return RequestOutcome(value=value, response=PartitionsAdded())


def verify_partitions(
    known: Transaction | None, request: TransactionPartitions
) -> dict[tuple[str, int], ErrorCode]:
    """The code of each partition. Raises ``KafkaError`` if the producer is not the current one."""
    transaction = _checked(known, request)
    present = {topic: frozenset(indexes) for topic, indexes in transaction.partitions.items()}
    return {
        (topic, index): ErrorCode.NONE
        if index in present.get(topic, ())
        else ErrorCode.TRANSACTION_ABORTABLE
        for topic, index in request
    }


def _checked(known: Transaction | None, request: TransactionPartitions) -> Transaction:
    if known is not None and is_next_producer(known, request.producer_id, request.producer_epoch):
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if known is None or known.producer_id != request.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if not is_current_epoch(known, request.producer_epoch):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if known.status.is_prepared:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return known


def _merged(
    known: Mapping[str, tuple[int, ...]], added: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    merged = dict(known)
    for topic, indexes in added.items():
        merged[topic] = tuple(dict.fromkeys((*merged.get(topic, ()), *indexes)))
    return merged
