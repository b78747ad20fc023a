"""What a judgement of the controller is made of: records to store, and the answer to give then.

Only replaying the records changes anything. The answer leaves once they are committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """No records means that nothing changes and the answer may leave at once."""

    records: tuple[Record, ...] = ()
    response: R
