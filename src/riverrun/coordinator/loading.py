"""Replay of a partition's log into a shard.

Record types that this version does not know are skipped and counted; the log keeps them for a
version that does. An unreadable record stops the load, because skipping it could lose offsets
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from riverrun.coordinator.log import (
    InTransaction,
    ProducerTransaction,
    TransactionEnd,
)
from riverrun.coordinator.records import UnknownKind
from riverrun.coordinator.shard_kind import Shard
from riverrun.model.ids import Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.records.batch import BatchHeader, Buffer, CorruptBatch, batches, crc_matches
from riverrun.records.record import payload_of, spans
from riverrun.storage.markers import NewMarker, read_marker

RECORDS_PER_STEP = 32
"""Records between two chances to yield to the event loop."""


class Loader:
    """The replay of one partition; ``next_offset`` is where to read next."""

    def __init__(
        self,
        shard: Shard[Any],
        start_offset: Offset,
        decode: Callable[[bytes, bytes | None], Any],
    ) -> None:
        self.next_offset = start_offset
        self.records = 0
        self.skipped = 0
        self._shard = shard
        self._decode = decode

    def replay(self, data: bytes) -> Iterator[None]:
        """Replay whole batches, yielding after each step. Raises ``CorruptBatch``."""
        try:
            for at, header in batches(data):
                if not crc_matches(data, at, header.size):
                    raise CorruptBatch(f"wrong CRC of the batch at offset {header.base_offset}")
                batch = memoryview(data)[at : at + header.size]
                if header.is_control:
                    self._end_transaction(header, batch)
                else:
                    yield from self._replay_records(header, batch)
                self.next_offset = Offset(header.next_offset)
                yield
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error

    def _replay_records(self, header: BatchHeader, batch: Buffer) -> Iterator[None]:
        payload = payload_of(batch, header)
        transaction = None
        if header.is_transactional:
            transaction = ProducerTransaction(header.producer_id, header.producer_epoch)
        for span in spans(payload, header.count):
            _, _, _, _, key_at, key_size, value_at, value_size = span
            known = None
            if key_size >= 0:
                value = payload[value_at : value_at + value_size] if value_size >= 0 else None
                known = self._decoded(payload[key_at : key_at + key_size], value)
            if known is None:
                self.skipped += 1
            elif transaction is not None:
                self._shard.replay(InTransaction(transaction, known))
            else:
                self._shard.replay(known)
            self.records += 1
            if self.records % RECORDS_PER_STEP == 0:
                yield

    def _end_transaction(self, header: BatchHeader, batch: Buffer) -> None:
        content = read_marker(batch)
        if content is not None:
            marker = NewMarker(header.producer_id, header.producer_epoch, content)
            self._shard.replay(TransactionEnd(marker))

    def _decoded(self, key: bytes, value: bytes | None) -> Any:
        """The record, or None if this version does not know its kind."""
        try:
            return self._decode(key, value)
        except UnknownKind:
            return None
