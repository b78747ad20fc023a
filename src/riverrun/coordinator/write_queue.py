"""Records that wait to be appended to one partition of an internal topic, and their batches.

Turns that end while an append is running share the next batch, so a thousand committing consumers
cost a few appends. A turn with too many records for one batch is split over several. Its replies
are sent with the last one, and only if none was refused. A serial turn is not split.
Records of transactions and markers have batches of their own, which are appended together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field

from riverrun.coordinator.log import (
    InTransaction,
    ProducerTransaction,
    TransactionalAppend,
    TransactionEnd,
)
from riverrun.coordinator.shard_kind import TurnResults, Waiter
from riverrun.model.errors import ErrorCode
from riverrun.records.record import NewRecord, build_batch

RECORD_OVERHEAD_BYTES = 16
"""Lengths, deltas and attributes of a record in a batch, at most."""


class WriteOutcome(Struct):
    """The outcome of a turn's records so far; shared by all parts of a split turn."""

    refused: ErrorCode | None = None


class QueuedWrite(Struct):
    """Records of one turn, and the replies to send when they are committed."""

    records: list[Any]
    encoded: list[NewRecord]
    size: int
    outcome: WriteOutcome
    transaction: ProducerTransaction | TransactionEnd | None = None
    """The transaction that the records belong to, or the marker that ends one."""
    replies: Sequence[tuple[Waiter, Any]] = ()
    is_serial: bool = False
    """Whether it depends on all earlier writes."""

    def transactional_append(self, leader_epoch: int) -> TransactionalAppend:
        owner = self.transaction
        if isinstance(owner, TransactionEnd):
            return TransactionalAppend(marker=owner.marker)
        assert owner is not None, "the write belongs to no transaction"
        batch = build_batch(
            self.encoded,
            leader_epoch=leader_epoch,
            producer_id=owner.producer_id,
            producer_epoch=owner.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        return TransactionalAppend(batch, owner.attempt)


class WriteBatch(Struct):
    """Writes that are appended as one batch, or together if they belong to transactions."""

    writes: list[QueuedWrite]

    @property
    def is_transactional(self) -> bool:
        return self.writes[0].transaction is not None

    def encode(self, leader_epoch: int) -> bytes:
        return build_batch(
            [record for write in self.writes for record in write.encoded],
            leader_epoch=leader_epoch,
        )

    def records(self) -> list[Any]:
        return [record for write in self.writes for record in write.records]

    def waiters(self) -> list[Waiter]:
        return [waiter for write in self.writes for waiter, _ in write.replies]


class WriteQueue(Struct):
    """Writes in the order of their turns."""

    batch_bytes_max: int
    encode: Callable[[Any], tuple[bytes, bytes | None]]
    writes: deque[QueuedWrite] = field(default_factory=deque)
    records: int = 0

    def put(self, turn: TurnResults) -> None:
        """Queue a turn's records and replies. Replies without records wait for earlier writes."""
        outcome = WriteOutcome()
        write = QueuedWrite([], [], 0, outcome, is_serial=turn.is_serial)
        for record in turn.records:
            owner, content = _parted(record)
            key, value = (b"", None) if content is None else self.encode(content)
            size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            is_full = write.size + size > self.batch_bytes_max and not turn.is_serial
            if write.records and (is_full or owner != write.transaction):
                self.writes.append(write)
                write = QueuedWrite([], [], 0, outcome)
            write.transaction = owner
            write.records.append(record)
            if content is not None:
                write.encoded.append(NewRecord(value, key, turn.now_ms))
            write.size += size
        write.replies = turn.replies
        self.writes.append(write)
        self.records += len(turn.records)

    def take(self) -> WriteBatch:
        """Remove the next batch: at least one write, and as many more as fit."""
        taken = [self.writes.popleft()]
        size = taken[0].size
        is_plain = taken[0].transaction is None
        while (
            self.writes
            and size + self.writes[0].size <= self.batch_bytes_max
            and is_plain == (self.writes[0].transaction is None)
        ):
            taken.append(self.writes.popleft())
            size += taken[-1].size
        self.records -= sum(len(write.records) for write in taken)
        return WriteBatch(taken)

    def take_plain(self) -> list[QueuedWrite]:
        """Remove all writes that belong to no transaction."""
        taken = [write for write in self.writes if write.transaction is None]
        self.writes = deque(write for write in self.writes if write.transaction is not None)
        self.records -= sum(len(write.records) for write in taken)
        return taken

    def clear(self) -> None:
        self.writes.clear()
        self.records = 0


def _parted(record: Any) -> tuple[ProducerTransaction | TransactionEnd | None, Any]:
    """The transaction of a record and the record to encode; a marker has none."""
    if isinstance(record, InTransaction):
        return record.transaction, record.record
    if isinstance(record, TransactionEnd):
        return record, None
    return None, record
