"""From files to an image: the newest snapshot that is whole, then the log behind it.

Everything here is synchronous and comes as iterators that pause every few milliseconds; whoever
drives them decides what else may run in between.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import structlog

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import FIRST_EPOCH, Image
from riverrun.metadata.quorum import MetadataError, Voter, read_voters
from riverrun.metadata.records import UnknownRecord, decode
from riverrun.metadata.snapshot import (
    PART_SUFFIX,
    InvalidSnapshot,
    Snapshot,
    SnapshotId,
)
from riverrun.model.ids import NO_OFFSET, LeaderEpoch, Offset
from riverrun.ports.files import File, Files, read_whole
from riverrun.records.batch import CorruptBatch, batches
from riverrun.records.record import ControlType, Record, read_records

log = structlog.get_logger(__name__)

SLICE_RECORDS_MAX: Final = 200
KEPT_SNAPSHOTS: Final = 2


class SnapshotFolder:
    """The snapshots beside the log. All calls block on the disk."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def listed(self) -> list[SnapshotId]:
        """The oldest first."""
        found = [SnapshotId.parse(name) for name in self._files.list_directory(self._path)]
        return sorted(snapshot for snapshot in found if snapshot is not None)

    def remove_parts(self) -> None:
        """What a crash left half written."""
        for name in self._files.list_directory(self._path):
            if name.endswith(PART_SUFFIX):
                self._files.unlink(os.path.join(self._path, name))

    def newest(self) -> tuple[SnapshotId, Snapshot] | None:
        """The newest snapshot that is whole."""
        for snapshot in reversed(self.listed()):
            data = read_whole(self._files, os.path.join(self._path, snapshot.name))
            try:
                return snapshot, Snapshot(data)
            except InvalidSnapshot as error:
                log.warning("metadata snapshot is damaged", name=snapshot.name, reason=str(error))
        return None

    def begin(self, snapshot: SnapshotId) -> File:
        """An empty file to write into; it becomes a snapshot by ``finish``."""
        path = self._part(snapshot)
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.open(path, create=True)

    def finish(self, snapshot: SnapshotId, file: File) -> None:
        """Durable under its name when it returns."""
        with contextlib.closing(file):
            file.sync()
        self._files.rename(self._part(snapshot), os.path.join(self._path, snapshot.name))
        self._files.sync_directory(self._path)

    def abandon(self, snapshot: SnapshotId, file: File) -> None:
        file.close()
        self._files.unlink(self._part(snapshot))

    def remove_old(self) -> SnapshotId | None:
        """Keep the newest few, in case one turns out unreadable; the oldest that is kept."""
        listed = self.listed()
        for snapshot in listed[:-KEPT_SNAPSHOTS]:
            self._files.unlink(os.path.join(self._path, snapshot.name))
        kept = listed[-KEPT_SNAPSHOTS:]
        return kept[0] if kept else None

    def _part(self, snapshot: SnapshotId) -> str:
        return os.path.join(self._path, snapshot.name.removesuffix(".checkpoint") + PART_SUFFIX)


class Loading:
    """The state of metadata while it is read."""

    def __init__(self) -> None:
        self._delta = Delta(Image())
        self._timestamp = 0
        self.offset = NO_OFFSET
        self.epoch = FIRST_EPOCH
        self.voters: tuple[Voter, ...] | None = None
        self.bytes_behind_snapshot = 0

    @property
    def is_in_transaction(self) -> bool:
        return self._delta.is_in_transaction

    def take_snapshot(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> Iterator[None]:
        assert self.offset == NO_OFFSET, "a snapshot comes first"
        try:
            for records in snapshot.records():
                for record in records:
                    self._delta.replay(record)
                yield
        except (CorruptBatch, UnknownRecord) as error:
            raise MetadataError(f"snapshot {snapshot_id.name}: {error}") from error
        self.offset = Offset(snapshot_id.offset - 1)
        self.epoch = snapshot_id.epoch
        self.voters = snapshot.voters
        self._timestamp = snapshot.timestamp

    def take_batches(self, data: bytes) -> Iterator[None]:
        """Whole batches of the log, the first of them perhaps known in part from the snapshot."""
        try:
            for at, header in batches(data):
                if header.last_offset <= self.offset:
                    continue
                assert header.base_offset == self.offset + 1, f"{header} follows {self.offset}"
                assert header.leader_epoch >= self.epoch, f"{header} follows epoch {self.epoch}"
                stored = read_records(memoryview(data)[at : at + header.size])
                if header.is_control:
                    self._take_control(stored)
                else:
                    yield from self._take_records(stored)
                self.offset = Offset(header.last_offset)
                self.epoch = LeaderEpoch(header.leader_epoch)
                self._timestamp = header.max_timestamp
                self.bytes_behind_snapshot += header.size
                yield
        except (CorruptBatch, UnknownRecord) as error:
            raise MetadataError(f"metadata behind offset {self.offset}: {error}") from error

    def _take_records(self, stored: list[Record]) -> Iterator[None]:
        for place, record in enumerate(stored):
            self._delta.replay(decode(record.value or b""))
            if place % SLICE_RECORDS_MAX == SLICE_RECORDS_MAX - 1:
                yield

    def _take_control(self, stored: list[Record]) -> None:
        for record in stored:
            if ControlType.of(record.key) is ControlType.KRAFT_VOTERS:
                self.voters = read_voters(record.value or b"")

    def image(self) -> Image:
        return self._delta.publish(offset=self.offset, epoch=self.epoch, timestamp=self._timestamp)
