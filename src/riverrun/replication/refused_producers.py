"""Idempotent producers with a refused batch, until one of their batches is appended.

A producer sends several batches before it receives the first response. Suppose the first batch is
refused because too few replicas are in sync, because this node does not yet know that it leads, or
because the disk is full, and the cause then disappears. The next batch follows a gap.
OUT_OF_ORDER_SEQUENCE_NUMBER would be true but harmful: librdkafka then starts a new epoch and
repeats all unacknowledged batches, also those that were appended before a leader died. So the later
batches get the error of the first one, and the producer sends all of them again in order. (Apache
Kafka's brokers have the same problem.)

A batch is held back only while the producer can still fill the gap:

- The log expects one of the refused batches next. This is not always the first one: that may be a
  retry of a batch that the log has from an earlier leader. Any other gap is a loss, for example of
  acknowledged batches that a power loss took. The producer never sends those again, and would
  repeat its batch without end. OUT_OF_ORDER_SEQUENCE_NUMBER makes it start a new epoch.
- The producer has not sent the batch a second time since. Producers retry in order, so it would
  have sent the refused batch first. It has given that batch up.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.records.batch import HEADER_BYTES
from riverrun.storage.producers import SEQUENCE_MAX, Producers

PRODUCERS_MAX: Final = 1000
"""Entries of one partition; the oldest is evicted first."""
_PRODUCER: Final = struct.Struct(">qhi")
"""Producer id, producer epoch and base sequence."""
_PRODUCER_AT: Final = 43


class _Refusal(NamedTuple):
    epoch: int
    sequence: int
    """The base sequence of the first refused batch."""
    code: ErrorCode
    newest: int
    """The base sequence of the last batch that was refused or held back since."""


class RefusedProducers:
    __slots__ = ("_refusals",)

    def __init__(self) -> None:
        self._refusals: dict[int, _Refusal] = {}

    def __bool__(self) -> bool:
        return bool(self._refusals)

    def add(self, batch: bytearray | memoryview, code: ErrorCode) -> None:
        """The batch was refused with this code."""
        if len(batch) < HEADER_BYTES:
            return
        producer, epoch, sequence = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
        if producer < 0:
            return
        first = self._refusals.get(producer)
        if first is not None and first.epoch == epoch and _is_after(sequence, first.sequence):
            self._refusals[producer] = first._replace(newest=sequence)
            return
        self._refusals[producer] = _Refusal(epoch, sequence, code, sequence)
        if len(self._refusals) > PRODUCERS_MAX:
            del self._refusals[next(iter(self._refusals))]

    def remove(self, batch: bytearray | memoryview) -> None:
        """The batch was appended: its producer has resumed at the refused batch."""
        self._refusals.pop(_PRODUCER.unpack_from(batch, _PRODUCER_AT)[0], None)

    def clear(self) -> None:
        self._refusals.clear()

    def append_failed(
        self, batch: bytearray | memoryview, error: KafkaError | OSError, producers: Producers
    ) -> None:
        """The log refused the batch with this error. Raises another if that explains it better."""
        if isinstance(error, OSError):
            self.add(batch, ErrorCode.KAFKA_STORAGE_ERROR)
        elif error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.hold_back(batch, producers)

    def hold_back(self, batch: bytearray | memoryview, producers: Producers) -> None:
        """Raise the error of the refused batch if it can still fill the gap before this batch."""
        producer, epoch, sequence = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
        first = self._refusals.get(producer)
        if first is None or first.epoch != epoch:
            return
        expected = producers.next_sequence(producer, epoch)
        is_explained = expected is not None and (
            expected == first.sequence
            or (_is_after(expected, first.sequence) and not _is_after(expected, first.newest))
        )
        if not is_explained or not _is_after(sequence, first.newest):
            del self._refusals[producer]
            return
        self._refusals[producer] = first._replace(newest=sequence)
        raise KafkaError(first.code, "An earlier batch was refused.")


def _is_after(sequence: int, other: int) -> bool:
    """Sequences wrap, so the shorter way around decides."""
    return 0 < (sequence - other) & SEQUENCE_MAX <= SEQUENCE_MAX // 2
