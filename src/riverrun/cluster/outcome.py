"""What a judgement of the controller is made of: records to store, and the answer to give then.

Only replaying the records changes anything. The answer leaves once they are committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from msgspec import Struct

from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

R = TypeVar("R")

RECORDS_MAX: Final = 10_000
"""Records of one request, as in Kafka: they are written and replayed in one turn of the loop."""


def check_size(count: int) -> None:
    """A request is done as a whole or not at all, so one that is too large is refused."""
    if count > RECORDS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation."
        )


class Outcome(Struct, Generic[R], frozen=True, kw_only=True):
    """No records means that nothing changes and the answer may leave at once."""

    records: tuple[Record, ...] = ()
    response: R
