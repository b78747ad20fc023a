"""A record of what clients did in transactions and saw of them, for ``transaction_checks``.

Every value is written once, so that a value names the transaction that wrote it. A value may name
its source: the input record of a read-process-write chain that it was made from. All times are of
one clock. They are taken before a request is sent and after its response has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

PartitionKey = tuple[str, int]
GroupKey = tuple[str, str, int]
"""A group and a partition that it reads."""
Row = tuple[int, str]
"""Offset and value."""


class Outcome(Enum):
    OPEN = "its end was not requested"
    UNKNOWN = "its commit was requested, and the response is missing"
    COMMITTED = "its commit was confirmed"
    ABORTED = "its commit was never requested, or an abort was confirmed"


@dataclass(frozen=True, slots=True)
class InputRecord:
    """The input record from which a record was made, on behalf of a group."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class TransactionWrite:
    partition: PartitionKey
    value: str
    source: InputRecord | None = None


@dataclass(slots=True, kw_only=True)
class ObservedTransaction:
    """One transaction of one producer, from its begin to its confirmed end."""

    name: str
    began: float
    writes: list[TransactionWrite] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Values that were read inside the transaction."""
    offsets: dict[GroupKey, int] = field(default_factory=dict)
    outcome: Outcome = Outcome.OPEN
    commit_requested: float | None = None
    ended: float | None = None

    def requests_commit(self, now: float) -> None:
        if self.commit_requested is None:
            self.commit_requested = now
        self.outcome = Outcome.UNKNOWN

    def is_committed(self, now: float) -> None:
        self.outcome, self.ended = Outcome.COMMITTED, now

    def is_aborted(self, now: float) -> None:
        """Only for an abort that no request to commit preceded."""
        assert self.commit_requested is None, f"{self.name} may be committed"
        self.outcome, self.ended = Outcome.ABORTED, now


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRead:
    """Records that a read_committed reader got for the positions [start, end)."""

    reader: str
    partition: PartitionKey
    start: int
    end: int
    rows: Sequence[Row]
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffset:
    """The committed offset of a group, fetched with require_stable; None if it has none."""

    group: GroupKey
    offset: int | None
    began: float
    now: float


@dataclass(slots=True)
class TransactionHistory:
    """Everything that the clients of one run did and saw."""

    transactions: list[ObservedTransaction] = field(default_factory=list)
    reads: list[CommittedRead] = field(default_factory=list)
    fetched_offsets: list[FetchedOffset] = field(default_factory=list)

    def begin(self, process: str, now: float) -> ObservedTransaction:
        name = f"{process}.{len(self.transactions)}"
        record = ObservedTransaction(name=name, began=now)
        self.transactions.append(record)
        return record

    @property
    def commits(self) -> int:
        return sum(each.outcome is Outcome.COMMITTED for each in self.transactions)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalState:
    """What read_committed readers see after all faults and transactions have ended."""

    logs: Mapping[PartitionKey, Sequence[Row]]
    offsets: Mapping[GroupKey, int] = field(default_factory=dict)
