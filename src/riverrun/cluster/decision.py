"""A controller decision: the records to append, and the response to send once they are committed.

State changes only when the records are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

R = TypeVar("R")
Permit = Callable[[int], None]
"""Called with the number of partitions that a change creates or deletes; raises ``KafkaError`` if
the client may not change so many now."""

RECORDS_MAX: Final = 10_000
"""Records of one request, as in Kafka: they are written and replayed in one event-loop
iteration."""


class Decision(Struct, Generic[R], frozen=True, kw_only=True):
    """No records: nothing changes, and the response reports the image that it was made from."""

    records: tuple[Record, ...] = ()
    response: R


def unlimited(partitions: int) -> None:
    """Permits every change."""


def check_size(count: int) -> None:
    """Raise POLICY_VIOLATION if a request has more records than one atomic batch may hold."""
    if count > RECORDS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
        )
