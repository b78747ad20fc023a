"""Producers that were refused though their batches were sound, until one of theirs is taken.

Producers send several batches before they hear of the first. If that is refused because too few
replicas are in sync, or because this node does not know yet that it leads, and the reason passes
meanwhile, then the next one follows a gap. To call it out of order would be true, and would do
harm: librdkafka begins a new epoch then, in which it repeats everything that waits for its
acknowledgement, also what was appended before a leader died. So the next ones are refused for the
reason of the first, and all are sent again in their order (the same happens to Kafka's brokers).
"""

from __future__ import annotations

import struct
from typing import Final

from riverrun.model.errors import ErrorCode
from riverrun.records.batch import HEADER_BYTES

PRODUCERS_MAX: Final = 1000
"""Remembered for one partition; the oldest are forgotten first."""
_PRODUCER_ID: Final = struct.Struct(">q")
_PRODUCER_ID_AT: Final = 43


class Refusals:
    __slots__ = ("_reasons",)

    def __init__(self) -> None:
        self._reasons: dict[int, ErrorCode] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def note(self, batch: bytearray | memoryview, reason: ErrorCode) -> None:
        if len(batch) < HEADER_BYTES:
            return
        producer = _producer_of(batch)
        if producer >= 0:
            self._reasons.setdefault(producer, reason)
            if len(self._reasons) > PRODUCERS_MAX:
                del self._reasons[next(iter(self._reasons))]

    def taken(self, batch: bytearray | memoryview) -> None:
        """The producer goes on where it was refused."""
        self._reasons.pop(_producer_of(batch), None)

    def reason(self, batch: bytearray | memoryview) -> ErrorCode | None:
        """Why a batch before this one was refused, if it was."""
        return self._reasons.get(_producer_of(batch))


def _producer_of(batch: bytearray | memoryview) -> int:
    producer: int = _PRODUCER_ID.unpack_from(batch, _PRODUCER_ID_AT)[0]
    return producer
