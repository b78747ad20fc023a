"""The log of a partition of ``__consumer_offsets``, as the coordinator uses it."""

from __future__ import annotations

from typing import Final, Protocol

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import LeaderEpoch, Offset

REFUSED: Final = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)
"""Errors that prove that a batch is not in the log. After any other error it may be."""


class CoordinatorLog(Protocol):
    """One partition of ``__consumer_offsets`` that this node leads. Implemented by the server."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def start_offset(self) -> Offset: ...

    async def append(self, batch: bytes) -> Offset:
        """Append one batch; return when it is committed. Raises KafkaError or OSError."""
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
