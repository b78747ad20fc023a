"""Replay of a partition's log into a shard.

Records of a transaction are replayed when its COMMIT marker is read. Record types that this version
does not know are skipped and counted; the log keeps them for a version that does. An unreadable
record stops the load, because skipping it could lose offsets silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from riverrun.coordinator.records import UnknownKind
from riverrun.coordinator.shard_kind import Shard
from riverrun.model.ids import Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.records.batch import BatchHeader, Buffer, CorruptBatch, batches, crc_matches
from riverrun.records.record import ControlType, payload_of, read_records, spans

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
        self._open: dict[int, list[Any]] = {}
        """Records of transactions that have not ended, by producer id."""

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
        for span in spans(payload, header.count):
            _, _, _, _, key_at, key_size, value_at, value_size = span
            known = None
            if key_size >= 0:
                value = payload[value_at : value_at + value_size] if value_size >= 0 else None
                known = self._decoded(payload[key_at : key_at + key_size], value)
            if known is None:
                self.skipped += 1
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(known)
            else:
                self._shard.replay(known)
            self.records += 1
            if self.records % RECORDS_PER_STEP == 0:
                yield

    def _end_transaction(self, header: BatchHeader, batch: Buffer) -> None:
        for record in read_records(batch):
            kind = ControlType.of(record.key)
            if kind not in (ControlType.COMMIT, ControlType.ABORT):
                continue
            for known in self._open.pop(header.producer_id, ()):
                if kind is ControlType.COMMIT:
                    self._shard.replay(known)

    def _decoded(self, key: bytes, value: bytes | None) -> Any:
        """The record, or None if this version does not know its kind."""
        try:
            return self._decode(key, value)
        except UnknownKind:
            return None
