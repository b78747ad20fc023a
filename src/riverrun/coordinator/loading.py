"""Loading: the log of a partition replayed into a shard, in slices that leave room for others.

Records written in a transaction count when its marker says that it was committed. Kinds of records
that this version does not know are passed over and counted; the log keeps them for a version that
does. Records that cannot be read at all stop the loading: to go on would lose offsets silently.
"""

from __future__ import annotations

from collections.abc import Iterator

from riverrun.coordinator.records import CoordinatorRecord, UnknownKind, decode
from riverrun.coordinator.shard import GroupShard
from riverrun.model.ids import Offset
from riverrun.records.batch import BatchHeader, CorruptBatch, batches, crc_matches
from riverrun.records.record import ControlType, Record, read_records

SLICE_RECORDS = 32
"""Records between two chances to let others run."""


class Loader:
    def __init__(self, shard: GroupShard, start_offset: Offset) -> None:
        self.next_offset = start_offset
        self.records = 0
        self.skipped = 0
        self._shard = shard
        self._open: dict[int, list[CoordinatorRecord]] = {}
        """Records of transactions that have not ended, by producer id."""

    def replay(self, data: bytes) -> Iterator[None]:
        """Replay whole batches; yields where one may pause. Raises ``CorruptBatch``."""
        for at, header in batches(data):
            if not crc_matches(data, at, header.size):
                raise CorruptBatch(f"wrong CRC of the batch at offset {header.base_offset}")
            found = read_records(memoryview(data)[at : at + header.size])
            if header.is_control:
                self._end_transaction(header, found)
            else:
                yield from self._replay_records(header, found)
            self.next_offset = Offset(header.next_offset)
            yield

    def _replay_records(self, header: BatchHeader, found: list[Record]) -> Iterator[None]:
        for number, record in enumerate(found):
            known = self._decoded(record)
            if known is None:
                self.skipped += 1
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(known)
            else:
                self._shard.replay(known)
            self.records += 1
            if number % SLICE_RECORDS == SLICE_RECORDS - 1:
                yield

    def _decoded(self, record: Record) -> CoordinatorRecord | None:
        if record.key is None:
            return None
        try:
            return decode(record.key, record.value)
        except UnknownKind:
            return None

    def _end_transaction(self, header: BatchHeader, found: list[Record]) -> None:
        for record in found:
            kind = ControlType.of(record.key)
            if kind not in (ControlType.COMMIT, ControlType.ABORT):
                continue
            for known in self._open.pop(header.producer_id, ()):
                if kind is ControlType.COMMIT:
                    self._shard.replay(known)
