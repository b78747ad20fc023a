"""The chain of images: published, written but uncommitted, and being replayed.

A follower reads committed batches from the log and replays them over the last published image. The
active controller replays its records before it writes them, because they must be valid, and keeps
the images until the records are committed. When it loses leadership, it drops those images: only
the log shows which of their records were committed.

Records of a metadata transaction (KIP-868) are published at its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.quorum import MetadataError
from riverrun.metadata.records import UnknownRecord, decode
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.model.invariants import InvariantViolation
from riverrun.records.batch import CorruptBatch, batches
from riverrun.records.record import Record as StoredRecord
from riverrun.records.record import read_records

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

SLICE_RECORDS_MAX: Final = 200


class Publication(Struct, frozen=True, kw_only=True):
    """An image that may be published when everything up to ``image.offset`` is committed."""

    delta: Delta
    image: Image
    start: Offset
    """Offset of its first record."""
    size: int
    """Bytes of its records in the log."""
    waiter: asyncio.Future[Image] | None = None
    """Resolved when it is published, or failed when its result is unknown."""


class Images:
    """``current`` never goes back. ``newest`` is ahead of it only on the active controller."""

    def __init__(self, image: Image) -> None:
        self.current = image
        self._written: deque[Publication] = deque()
        self._delta = Delta(image)
        self._next_offset = Offset(image.offset + 1)
        self._epoch = image.epoch
        self._timestamp = image.timestamp
        self._size = 0

    @property
    def newest(self) -> Image:
        return self._written[-1].image if self._written else self.current

    @property
    def waiting(self) -> int:
        """Publications whose records are not committed yet."""
        return len(self._written)

    @property
    def next_offset(self) -> Offset:
        """The first offset that is not replayed yet."""
        return self._next_offset

    def replay(self, data: bytes) -> Iterator[None]:
        """Replay committed batches; known ones are skipped."""
        try:
            for at, header in batches(data):
                if header.last_offset < self._next_offset:
                    continue
                assert header.base_offset == self._next_offset, f"{header}, not {self._next_offset}"
                assert header.leader_epoch >= self._epoch, f"{header} follows epoch {self._epoch}"
                if not header.is_control:
                    yield from self._replay(read_records(memoryview(data)[at : at + header.size]))
                self._next_offset = Offset(header.next_offset)
                self._epoch = LeaderEpoch(header.leader_epoch)
                self._timestamp = header.max_timestamp
                self._size += header.size
                yield
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error
        except (CorruptBatch, UnknownRecord) as error:
            raise MetadataError(f"metadata behind offset {self._next_offset}: {error}") from error

    def _replay(self, stored: Sequence[StoredRecord]) -> Iterator[None]:
        for place, record in enumerate(stored):
            self._delta.replay(decode(record.value or b""))
            if place % SLICE_RECORDS_MAX == SLICE_RECORDS_MAX - 1:
                yield

    def replayed(self) -> Publication | None:
        """The publication of everything replayed since the last image; None if there is nothing, or
        an open transaction."""
        start = Offset(self.current.offset + 1)
        if self._next_offset == start or self._delta.is_in_transaction:
            return None
        image = self._delta.publish(
            offset=Offset(self._next_offset - 1), epoch=self._epoch, timestamp=self._timestamp
        )
        return Publication(delta=self._delta, image=image, start=start, size=self._size)

    @property
    def is_in_transaction(self) -> bool:
        return self._delta.is_in_transaction

    def draft(self, records: Sequence[Record]) -> Delta:
        """Replay records over the newest image; an assertion fails if they are invalid."""
        delta = Delta(self.newest)
        if self.is_in_transaction:
            assert not self._written, "records follow an open transaction"
            delta = self._delta  # its writer is gone, and only we can end it
        for record in records:
            delta.replay(record)
        return delta

    def wrote(
        self,
        delta: Delta,
        *,
        start: Offset,
        end: Offset,
        epoch: LeaderEpoch,
        timestamp: int,
        size: int,
        waiter: asyncio.Future[Image] | None = None,
    ) -> None:
        """The records of a draft are in the log at [start, end)."""
        image = delta.publish(offset=Offset(end - 1), epoch=epoch, timestamp=timestamp)
        self._written.append(
            Publication(delta=delta, image=image, start=start, size=size, waiter=waiter)
        )

    def first_written(self) -> Publication | None:
        return self._written[0] if self._written else None

    def forget_written(self, committed: Offset) -> list[Publication]:
        """Other nodes may commit the uncommitted records, or drop them; only the log will show
        it."""
        forgotten: list[Publication] = []
        while self._written and self._written[-1].image.offset >= committed:
            forgotten.append(self._written.pop())
        if forgotten and not self._written:
            self._replay_anew()
        return forgotten[::-1]

    def published(self, publication: Publication) -> None:
        assert publication.image.offset > self.current.offset, "images go back"
        self.current = publication.image
        if self._written and self._written[0] is publication:
            self._written.popleft()
        self._replay_anew()

    def _replay_anew(self) -> None:
        self._delta = Delta(self.current)
        self._next_offset = Offset(self.current.offset + 1)
        self._epoch = self.current.epoch
        self._timestamp = self.current.timestamp
        self._size = 0
