"""Idempotent producers with a refused batch, until one of their batches is appended.

A producer sends several batches before it receives the first response. Suppose the first batch is
refused because too few replicas are in sync, or because this node does not yet know that it leads,
and the cause then disappears. The next batch follows a gap. OUT_OF_ORDER_SEQUENCE_NUMBER would be
true but harmful: librdkafka then starts a new epoch and repeats all unacknowledged batches, also
those that were appended before a leader died. So the later batches get the error of the first one,
and the producer sends all of them again in order. (Apache Kafka's brokers have the same problem.)
"""

from __future__ import annotations

import struct
from typing import Final

from riverrun.model.errors import ErrorCode
from riverrun.records.batch import HEADER_BYTES

PRODUCERS_MAX: Final = 1000
"""Entries of one partition; the oldest is evicted first."""
_PRODUCER_ID: Final = struct.Struct(">q")
_PRODUCER_ID_AT: Final = 43


class RefusedProducers:
    __slots__ = ("_codes",)

    def __init__(self) -> None:
        self._codes: dict[int, ErrorCode] = {}

    def __bool__(self) -> bool:
        return bool(self._codes)

    def add(self, batch: bytearray | memoryview, code: ErrorCode) -> None:
        """The batch was refused with this code."""
        if len(batch) < HEADER_BYTES:
            return
        producer = _producer_of(batch)
        if producer >= 0:
            self._codes.setdefault(producer, code)
            if len(self._codes) > PRODUCERS_MAX:
                del self._codes[next(iter(self._codes))]

    def remove(self, batch: bytearray | memoryview) -> None:
        """The batch was appended: its producer has resumed at the refused batch."""
        self._codes.pop(_producer_of(batch), None)

    def code_for(self, batch: bytearray | memoryview) -> ErrorCode | None:
        """The error of an earlier batch of this producer, if one was refused."""
        return self._codes.get(_producer_of(batch))


def _producer_of(batch: bytearray | memoryview) -> int:
    producer: int = _PRODUCER_ID.unpack_from(batch, _PRODUCER_ID_AT)[0]
    return producer
