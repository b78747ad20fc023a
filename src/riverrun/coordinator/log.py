"""What the coordinator needs of a partition of ``__consumer_offsets``, and how its errors read."""

from __future__ import annotations

from typing import Final, Protocol

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, Offset

REFUSED: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)
"""Errors after which a batch is certainly not in the log; after any other it may be."""


class CoordinatorLog(Protocol):
    """One partition of ``__consumer_offsets`` that this node leads. The server binds it."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def start_offset(self) -> Offset: ...

    async def append(self, batch: bytes) -> Offset:
        """Append one batch; return when it is committed. Raises KafkaError or OSError."""
        ...

    async def read(self, offset: Offset) -> bytes:
        """Whole batches from an offset on, below the high watermark; empty at the end.

        The end is where the log ended when it was asked: what was appended until then, by this node
        or by its predecessor, may have been acknowledged, or may yet be committed. So a read waits
        for the high watermark to come there.
        """
        ...


def response_code(code: ErrorCode) -> ErrorCode:
    """What a client is told when the log refuses: something that it knows how to handle."""
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
