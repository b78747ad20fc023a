"""One step of the transaction coordinator, as a value: see ``coordinator/turn.py``.

In addition to records and replies, a step may ask for markers: the records that end a transaction
in its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct, field

from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.shard_kind import Note, Waiter
from riverrun.coordinator.transactions.records import TransactionLogRecord
from riverrun.coordinator.transactions.transaction import Transaction
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import ProducerId
from riverrun.wire.messages.end_txn_response import EndTxnResponse
from riverrun.wire.messages.init_producer_id_response import InitProducerIdResponse


class PartitionsAdded(Struct, frozen=True):
    """The reply to a request that adds partitions."""


TransactionReply = InitProducerIdResponse | EndTxnResponse | PartitionsAdded


class TransactionTimer(IntEnum):
    """The deadlines of a transactional id."""

    TIMEOUT = 0
    """The transaction has been open for too long."""
    HOLD = 1
    """A held request must be answered."""
    COMPLETE = 2
    """Write the completion again, because the log refused it."""


TransactionTimerKey = tuple[TransactionTimer, str, int]
"""(timer, transactional id, waiter); the waiter is 0 for timers of the transaction."""


class EndMarkers(Struct, frozen=True, kw_only=True):
    """The markers that end one transaction, for all its partitions."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: Mapping[str, tuple[int, ...]]


class RequestOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a request: the next state to write, and the response once it is committed."""

    value: Transaction | None = None
    """None writes nothing."""
    response: TransactionReply | None = None
    """None means that the request waits for the end of this transaction and is decided again."""


class ProducerIdNeeded(KafkaError):
    """The request must be repeated with a new producer id. It has changed nothing."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a producer id is needed")


class TransactionTurn(Struct, kw_only=True):
    """Inputs and results of one request, one round of deadlines, or one committed batch."""

    now: float
    """Monotonic seconds, for deadlines."""
    now_ms: int
    """Milliseconds since 1970, for timestamps in records."""
    deadlines: Deadlines[TransactionTimerKey]
    records: list[TransactionLogRecord] = field(default_factory=list)
    replies: list[tuple[Waiter, TransactionReply | KafkaError]] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    is_serial: bool = False
    markers: list[EndMarkers] = field(default_factory=list)
    """Markers to send now: their Prepare records are committed."""
    ended: list[bool] = field(default_factory=list)
    """Transactions that are complete; True for commits."""

    def reply(self, waiter: Waiter, response: TransactionReply | KafkaError) -> None:
        """Send a response once the records of this turn are committed."""
        self.replies.append((waiter, response))

    def set_deadline(self, key: TransactionTimerKey, delay_ms: int) -> None:
        self.deadlines.set(key, self.now + delay_ms / 1000)

    def cancel_deadline(self, key: TransactionTimerKey) -> None:
        self.deadlines.cancel(key)

    def note(self, event: str, transactional_id: str, detail: str = "") -> None:
        self.notes.append(Note(event, transactional_id, detail))
