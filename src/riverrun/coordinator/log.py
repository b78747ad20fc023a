"""The log of a partition of an internal topic, as its coordinator uses it.

Offsets of a consumer group can be committed in a transaction. Their records are in batches of the
producer, and a marker decides about them. Both are queued, appended and replayed in the order of
all other records of the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.storage.markers import NewMarker

REFUSED: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)
"""Errors that prove that a batch is not in the log. After any other error it may be."""


class ProducerTransaction(Struct, frozen=True):
    """The transaction of a producer."""

    producer_id: int
    producer_epoch: int
    attempt: object = None
    """The verification of the transaction, which the log checks when it appends."""


class InTransaction(Struct, frozen=True):
    """A record that becomes valid when the transaction is committed."""

    transaction: ProducerTransaction
    record: Any


class TransactionEnd(Struct, frozen=True):
    """The marker that commits or aborts a producer's transaction."""

    marker: NewMarker


class TransactionalAppend(Struct, frozen=True):
    """A batch of a producer's transaction, or a marker."""

    batch: bytes = b""
    attempt: object = None
    """The verification of the batch's transaction."""
    marker: NewMarker | None = None


class CoordinatorLog(Protocol):
    """One partition of ``__consumer_offsets`` that this node leads. Implemented by the server."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def start_offset(self) -> Offset: ...

    async def append(self, batch: bytes) -> Offset:
        """Append one batch; return when it is committed. Raises KafkaError or OSError."""
        ...

    async def append_transactional(self, appends: Sequence[TransactionalAppend]) -> list[ErrorCode]:
        """Append batches and markers in order; return when they are committed.

        A code other than NONE refuses one of them, which is then not in the log. Raises KafkaError
        or OSError if it is unknown which of them are.
        """
        ...

    async def read(self, offset: Offset) -> bytes:
        """Whole batches from an offset on, below the high watermark; empty at the end.

        The end is the log end offset at the time of the call. Records below it, appended by this
        node or by the previous leader, may have been acknowledged or may still be committed. So a
        read waits until the high watermark reaches it.
        """
        ...


def response_code(code: ErrorCode) -> ErrorCode:
    """The error code for clients when the log refuses a batch: one that they can handle."""
    match code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        case _:
            return code
