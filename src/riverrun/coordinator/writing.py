"""What waits to be written to one partition of ``__consumer_offsets``, cut into batches.

Requests that arrive while a batch is on its way share the next one, so a thousand committing
consumers cost a few writes. A request with very many records is cut into several batches; its reply
leaves with the last of them, and only if none was refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct, field

from riverrun.coordinator.records import CoordinatorRecord, encode
from riverrun.coordinator.turn import Response, Turn, Waiter
from riverrun.model.errors import ErrorCode
from riverrun.records.record import NewRecord, build_batch

RECORD_OVERHEAD_BYTES = 16
"""Lengths, deltas and attributes of a record in a batch, at most."""


class Fate(Struct):
    """What became of the parts of one turn's records that were written so far."""

    refused: ErrorCode | None = None


class Entry(Struct):
    """Some records of one turn, and the replies that leave with them."""

    records: list[CoordinatorRecord]
    encoded: list[NewRecord]
    size: int
    fate: Fate
    replies: Sequence[tuple[Waiter, Response]] = ()


class Batch(Struct):
    entries: list[Entry]

    def encode(self, leader_epoch: int) -> bytes:
        return build_batch(
            [record for entry in self.entries for record in entry.encoded],
            leader_epoch=leader_epoch,
        )

    def records(self) -> list[CoordinatorRecord]:
        return [record for entry in self.entries for record in entry.records]

    def waiters(self) -> list[Waiter]:
        return [waiter for entry in self.entries for waiter, _ in entry.replies]


class Queue(Struct):
    batch_bytes_max: int
    entries: deque[Entry] = field(default_factory=deque)
    records: int = 0

    def put(self, turn: Turn) -> None:
        """Take over a turn's records and replies; without records it waits for its turn only."""
        fate = Fate()
        entry = Entry([], [], 0, fate)
        for record in turn.records:
            key, value = encode(record)
            size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
            if entry.records and entry.size + size > self.batch_bytes_max:
                self.entries.append(entry)
                entry = Entry([], [], 0, fate)
            entry.records.append(record)
            entry.encoded.append(NewRecord(value, key, turn.now_ms))
            entry.size += size
        entry.replies = turn.replies
        self.entries.append(entry)
        self.records += len(turn.records)

    def take(self) -> Batch:
        """The next batch: at least one entry, and as many more as fit."""
        taken = [self.entries.popleft()]
        size = taken[0].size
        while self.entries and size + self.entries[0].size <= self.batch_bytes_max:
            taken.append(self.entries.popleft())
            size += taken[-1].size
        self.records -= sum(len(entry.records) for entry in taken)
        return Batch(taken)

    def clear(self) -> list[Entry]:
        dropped = list(self.entries)
        self.entries.clear()
        self.records = 0
        return dropped
