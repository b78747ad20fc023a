"""DescribeTransactions and ListTransactions: the transactional ids of a node for administrators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from riverrun.coordinator.transactions.transaction import KNOWN_STATES, Transaction
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.describe_transactions_response import (
    TopicData,
)
from riverrun.wire.messages.describe_transactions_response import (
    TransactionState as DescribedTransaction,
)
from riverrun.wire.messages.list_transactions_response import (
    TransactionState as ListedTransaction,
)


class TransactionFilter(Struct, frozen=True, kw_only=True):
    """Which transactions to list. An empty filter matches all."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    open_longer_than_ms: int = -1
    """Negative matches all."""

    def matches(self, found: Transaction, now_ms: int) -> bool:
        if self.producer_ids and found.producer_id not in self.producer_ids:
            return False
        if self.states and found.status.title not in self.states:
            return False
        limit_ms = self.open_longer_than_ms
        return limit_ms < 0 or now_ms - found.started_ms > limit_ms


def unknown_states(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in KNOWN_STATES)


def listed(
    transactions: Iterable[tuple[str, Transaction]], wanted: TransactionFilter, now_ms: int
) -> Iterator[ListedTransaction]:
    for transactional_id, found in transactions:
        if wanted.matches(found, now_ms):
            yield ListedTransaction(
                transactional_id=transactional_id,
                producer_id=found.producer_id,
                transaction_state=found.status.title,
            )


def described(transactional_id: str, found: Transaction) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.status.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            TopicData(topic=topic, partitions=indexes)
            for topic, indexes in found.partitions.items()
        ),
    )


def not_described(transactional_id: str, code: ErrorCode) -> DescribedTransaction:
    return DescribedTransaction(
        error_code=code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=(),
    )
