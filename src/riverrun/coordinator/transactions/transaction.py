"""The state of a transactional id, and the transitions between its states.

    Empty ──add partitions──▶ Ongoing ──EndTxn, timeout, fence──▶ Prepare* ──markers──▶ Complete*
      ▲                          ▲                                   ▲                     │
      │                          └──────────add partitions───────────┼─────────────────────┤
      └──InitProducerId──────────────────────────────────────────────┼─────────────────────┤
                                                    abort without partitions (version 2) ──┘

A transaction is a value. A handler makes the next one, and it becomes the state of its id when its
record is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from msgspec import Struct

from riverrun.model.ids import ProducerId

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 2**15 - 1
EXHAUSTED_EPOCH: Final = EPOCH_MAX - 1
"""A producer with this epoch gets a new id instead of the next epoch. The last epoch is left for
the markers that fence it."""
NOT_STARTED: Final = -1
EPOCH_BUMP_SINCE: Final = 2
"""The transaction.version from which the epoch is bumped with every transaction (KIP-890)."""


class TransactionStatus(IntEnum):
    """States with their numbers in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def title(self) -> str:
        """The name in Kafka's APIs: ``PrepareCommit``."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        return self in (TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)


KNOWN_STATES: Final = (*(status.title for status in TransactionStatus), "Dead", "PrepareEpochFence")
"""The states of Kafka's APIs. The last two are never stored."""

_IDLE: Final = (
    TransactionStatus.EMPTY,
    TransactionStatus.COMPLETE_COMMIT,
    TransactionStatus.COMPLETE_ABORT,
)
TRANSITIONS: Final[Mapping[TransactionStatus, tuple[TransactionStatus, ...]]] = {
    TransactionStatus.EMPTY: _IDLE,
    TransactionStatus.ONGOING: (TransactionStatus.ONGOING, *_IDLE),
    TransactionStatus.PREPARE_COMMIT: (TransactionStatus.ONGOING,),
    TransactionStatus.PREPARE_ABORT: (TransactionStatus.ONGOING, *_IDLE),
    TransactionStatus.COMPLETE_COMMIT: (TransactionStatus.PREPARE_COMMIT,),
    TransactionStatus.COMPLETE_ABORT: (TransactionStatus.PREPARE_ABORT,),
}
"""The states from which a state may be entered. A transactional id is deleted when it is idle."""


class Transaction(Struct, frozen=True, kw_only=True):
    """A transactional id: its producer, and its current or last transaction."""

    producer_id: ProducerId
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: Mapping[str, tuple[int, ...]]
    """Partition indexes by topic."""
    updated_ms: int
    started_ms: int = NOT_STARTED
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The id before the last one whose epochs were exhausted, for retries."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The id from the completion on, because the epochs of this one are exhausted."""
    client_version: int = 0
    """The transaction version of the client that changed it last."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last bump by its own producer (KIP-360). It is not stored in the log, so
    a retry after a failover is fenced, as in Kafka."""

    @property
    def is_idle(self) -> bool:
        return self.status in _IDLE

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_EPOCH

    @property
    def partition_count(self) -> int:
        return sum(len(indexes) for indexes in self.partitions.values())


def is_next_producer(known: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether a producer already uses the id and epoch that the completion will set.

    EndTxn has told it when the Prepare record was committed, so its next request may come before
    the completion. It must wait, not fail (KAFKA-18660).
    """
    is_next = known.next_producer_id != NO_PRODUCER_ID and producer_id == known.next_producer_id
    return is_next and producer_epoch == 0


def is_current_epoch(known: Transaction, producer_epoch: int) -> bool:
    """Whether a producer has the epoch of the state. No producer has the last one."""
    return producer_epoch == known.producer_epoch and producer_epoch < EPOCH_MAX


def check_transition(known: Transaction | None, following: Transaction) -> None:
    """Assert that a handler made an allowed change."""
    if known is None:
        assert following.status is TransactionStatus.EMPTY, f"begins as {following.status.name}"
        return
    assert known.status in TRANSITIONS[following.status], (
        f"{following.status.name} after {known.status.name}"
    )
    if known.producer_id == following.producer_id:
        assert following.producer_epoch >= known.producer_epoch, (
            f"epoch went back from {known.producer_epoch} to {following.producer_epoch}"
        )
