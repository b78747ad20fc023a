"""What a runner needs to know about the state machines of its shards.

The group coordinator and the transaction coordinator have the same shape: a shard holds the state
of one partition of an internal topic, handles every event in one turn, and changes durable state
only when records are replayed. ``ShardRunner`` and ``LedShards`` serve both. A ``ShardKind`` tells
them how to build a shard and how to read and write its records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NewType, Protocol, TypeVar

from msgspec import Struct

from riverrun.coordinator.deadlines import Deadlines
from riverrun.model.errors import ErrorCode, KafkaError

Waiter = NewType("Waiter", int)
"""A pending request, by a number that its runner assigned."""


class Note(Struct, frozen=True):
    """A log event for the operator, about a group or a transactional id."""

    event: str
    subject: str
    detail: str


class TurnResults(Protocol):
    """The results of one step of a shard."""

    now_ms: int
    records: list[Any]
    replies: list[tuple[Waiter, Any]]
    """A reply is a response, or a ``KafkaError`` for a request that failed."""
    notes: list[Note]
    is_serial: bool
    """Whether to write the records in one batch, and to reply after all earlier writes."""

    def reply(self, waiter: Waiter, response: Any, /) -> None: ...


T = TypeVar("T", bound=TurnResults)


class Shard(Protocol[T]):
    """The state machine of one partition. It never waits and does no I/O."""

    @property
    def deadlines(self) -> Deadlines[Any]: ...

    def turn(self, now: float, now_ms: int) -> T: ...

    def replay(self, record: Any) -> None:
        """Apply a committed record: the only place where durable state changes."""
        ...

    def known_ids(self) -> list[str]:
        """All groups or transactional ids with durable state."""
        ...

    def restore(self, turn: T, ids: Sequence[str]) -> None:
        """Build in-memory state after loading. Writes nothing."""
        ...

    def counts(self) -> Mapping[str, int]:
        """What was loaded, for the log."""
        ...

    def sent(self, records: Iterable[Any]) -> None:
        """Note that the records of a turn are in flight."""
        ...

    def committed(self, turn: T, records: Iterable[Any]) -> None: ...

    def refused(self, turn: T, records: Iterable[Any], code: ErrorCode) -> None: ...

    def unload(self, turn: T) -> None:
        """Fail all pending requests, because another node may coordinate now."""
        ...

    def connection_lost(self, turn: T, subject: str, waiter: Waiter) -> None: ...

    def expire(self, turn: T) -> None:
        """Handle the deadlines that have passed."""
        ...


S = TypeVar("S", bound=Shard[Any])


class SupersededConnection(KafkaError):
    """A newer connection has made such a request for the same client. The request was delayed, and
    its client has given it up. The connection is closed."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_COORDINATOR, "a newer connection speaks for the client")


class AppendTimedOut(KafkaError):
    """Records are not committed yet, and may still be. Clients get the code that Kafka uses."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class ShardLimits(Struct, frozen=True, kw_only=True):
    """Limits on the writes of one shard."""

    batch_bytes_max: int
    queue_records_max: int
    append_timeout_ms: int


class ShardKind(Struct, Generic[S], frozen=True, kw_only=True):
    """One kind of coordinator."""

    name: str
    """In log events: "group" or "transaction"."""
    subject: str
    """The field of log events that names a group or a transactional id."""
    limits: ShardLimits
    new_shard: Callable[[], S]
    encode: Callable[[Any], tuple[bytes, bytes | None]]
    decode: Callable[[bytes, bytes | None], Any]
    """Raises ``UnknownKind`` for records that a later version may know."""
