"""Reads committed records of the metadata log, without holding the event loop.

Records that are not in the page cache are loaded in a thread, and records are decoded in slices of
a few milliseconds. A snapshot may replace the start of the log at any moment; then a read raises
``KafkaError`` OFFSET_OUT_OF_RANGE.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.metadata.records import decode
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import Offset
from riverrun.ports.aio import Yielder
from riverrun.records.batch import BatchHeader, CorruptBatch, batches
from riverrun.records.record import ControlType, payload_of, spans
from riverrun.server.facts.metadata_events import DecodedRecord
from riverrun.storage.segment.reader import ColdRead
from riverrun.wire.stored import UnknownRecord

if TYPE_CHECKING:
    from riverrun.ports.clock import Clock
    from riverrun.server.services import NodeServices

READ_BYTES: Final = 256 * 1024


class DecodedBatch(Struct, frozen=True, kw_only=True):
    """The wanted records of one batch."""

    header: BatchHeader
    records: list[DecodedRecord]

    @property
    def time_ms(self) -> int:
        return self.header.max_timestamp


class MetadataReader:
    def __init__(self, services: NodeServices) -> None:
        self._log = services.metadata.store.log
        self._metadata = services.metadata
        self._log_manager = services.log_manager
        self._clock: Clock = services.clock

    @property
    def start_offset(self) -> Offset:
        """Earlier records are only part of a snapshot."""
        return self._log.start_offset

    @property
    def end_offset(self) -> Offset:
        """The end of what is committed and published here."""
        return Offset(self._metadata.current.offset + 1)

    async def batches(self, start: int, end: int) -> AsyncIterator[DecodedBatch]:
        """The records of [start, end), in order."""
        yielder = Yielder(self._clock)
        at = start
        while at < end:
            data = await self._read(at, end)
            if not data:
                return
            for place, header in batches(data):
                if header.next_offset > at and header.base_offset < end:
                    part = data[place : place + header.size]
                    records = await self._decode(part, header, start, end, yielder)
                    yield DecodedBatch(header=header, records=records)
                at = max(at, header.next_offset)

    async def _read(self, offset: int, end: int) -> bytes:
        # The batch with the last wanted record may end behind it.
        limit = max(end, self.end_offset)
        found = self._log.read(offset, max_bytes=READ_BYTES, end=limit)
        if isinstance(found, ColdRead):
            found = await self._log_manager.load(found)
        return bytes(found.data)

    async def _decode(
        self, batch: bytes, header: BatchHeader, start: int, end: int, yielder: Yielder
    ) -> list[DecodedRecord]:
        found: list[DecodedRecord] = []
        try:
            payload = payload_of(batch, header)
            for _, _, _, delta, key_at, key_size, value_at, value_size in spans(
                payload, header.count
            ):
                await yielder.step()
                offset = header.base_offset + delta
                if not start <= offset < end:
                    continue
                value = payload[value_at : value_at + max(value_size, 0)]
                if header.is_control:
                    key = payload[key_at : key_at + max(key_size, 0)]
                    control = ControlType.of(key)
                    found.append(DecodedRecord(offset, None, control, value))
                else:
                    found.append(DecodedRecord(offset, decode(value)))
        except (CorruptBatch, UnknownRecord) as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        return found

    async def offset_at(self, time_ms: int) -> int:
        """The first offset that is not earlier than a moment; the end if there is none."""
        found = await self._log_manager.in_thread(lambda: self._log.offset_for_timestamp(time_ms))
        return self.end_offset if found is None else min(found.offset, self.end_offset)
