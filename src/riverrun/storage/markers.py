"""Transaction markers: the control batches that commit or abort a producer's transaction.

A marker is a control batch of one record. Its key is the control type, its value the epoch of the
transaction coordinator that wrote it (Kafka's EndTxnMarker, version 0).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from riverrun.records.batch import Buffer
from riverrun.records.record import ControlType, NewRecord, build_batch, read_records

_VALUE = struct.Struct(">hi")
_VALUE_VERSION = 0


class TransactionMarker(NamedTuple):
    """The content of a marker."""

    is_commit: bool
    coordinator_epoch: int


class NewMarker(NamedTuple):
    """A marker to append."""

    producer_id: int
    producer_epoch: int
    content: TransactionMarker
    transaction_version: int = 0
    """From 2 on, the producer epoch must be above that of the transaction (KIP-1228)."""

    def encode(self, base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
        kind = ControlType.COMMIT if self.content.is_commit else ControlType.ABORT
        value = _VALUE.pack(_VALUE_VERSION, self.content.coordinator_epoch)
        return build_batch(
            [NewRecord(value, kind.key(), now_ms)],
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            transactional=True,
            control=True,
        )


def read_marker(batch: Buffer) -> TransactionMarker | None:
    """The transaction marker in a control batch; None if it is of another type."""
    for record in read_records(batch):
        kind = ControlType.of(record.key)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            value = record.value or b""
            coordinator_epoch = _VALUE.unpack_from(value)[1] if len(value) >= _VALUE.size else -1
            return TransactionMarker(kind is ControlType.COMMIT, coordinator_epoch)
    return None
