"""Loading: the snapshots beside the log, and the voters in both.

Everything here is synchronous. Long work is an iterator that pauses every few milliseconds, so that
its caller can yield to the event loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

import structlog

from riverrun.metadata.delta import Delta
from riverrun.metadata.image import Image
from riverrun.metadata.quorum import MetadataError, Voter, read_voters
from riverrun.metadata.records import UnknownRecord
from riverrun.metadata.snapshot import (
    PART_SUFFIX,
    InvalidSnapshot,
    Snapshot,
    SnapshotId,
)
from riverrun.model.ids import Offset
from riverrun.ports.files import Buffer, File, Files, read_whole
from riverrun.records.batch import CorruptBatch, batches
from riverrun.records.record import ControlType, read_records

log = structlog.get_logger(__name__)

KEPT_SNAPSHOTS: Final = 2


class SnapshotFolder:
    """The snapshots beside the log. All calls block on the disk."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def listed(self) -> list[SnapshotId]:
        """Oldest first."""
        found = [SnapshotId.parse(name) for name in self._files.list_directory(self._path)]
        return sorted(snapshot for snapshot in found if snapshot is not None)

    def remove_parts(self) -> None:
        """Remove files that a crash left incomplete."""
        for name in self._files.list_directory(self._path):
            if name.endswith(PART_SUFFIX):
                self._files.unlink(os.path.join(self._path, name))

    def newest(self) -> tuple[SnapshotId, Snapshot] | None:
        """The newest complete snapshot."""
        for snapshot in reversed(self.listed()):
            data = read_whole(self._files, os.path.join(self._path, snapshot.name))
            try:
                return snapshot, Snapshot(data)
            except InvalidSnapshot as error:
                log.warning("metadata snapshot is damaged", name=snapshot.name, error=str(error))
        return None

    def begin(self, snapshot: SnapshotId, kind: str = "") -> File:
        """An empty file to write into; ``finish`` makes it a snapshot."""
        path = self._part(snapshot, kind)
        if self._files.exists(path):
            self._files.unlink(path)
        return self._files.open(path, create=True)

    def finish(self, snapshot: SnapshotId, file: File, kind: str = "") -> int:
        """Rename it to its final name. Durable when it returns; returns the size."""
        with contextlib.closing(file):
            file.sync()
            size = file.size()
        self._files.rename(self._part(snapshot, kind), os.path.join(self._path, snapshot.name))
        self._files.sync_directory(self._path)
        return size

    def abandon(self, snapshot: SnapshotId, file: File, kind: str = "") -> None:
        file.close()
        self._files.unlink(self._part(snapshot, kind))

    def read(self, snapshot: SnapshotId, position: int, length: int) -> bytes:
        path = os.path.join(self._path, snapshot.name)
        with contextlib.closing(self._files.open(path)) as file:
            return file.read_at(position, length)

    def remove_old(self) -> None:
        """Keep the newest few, in case one is unreadable."""
        for snapshot in self.listed()[:-KEPT_SNAPSHOTS]:
            self._files.unlink(os.path.join(self._path, snapshot.name))

    def _part(self, snapshot: SnapshotId, kind: str) -> str:
        name = snapshot.name.removesuffix(".checkpoint") + kind + PART_SUFFIX
        return os.path.join(self._path, name)


class Loading:
    """The image in a snapshot: iterate ``steps``, then read ``image``."""

    def __init__(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> None:
        self._id = snapshot_id
        self._snapshot = snapshot
        self._delta = Delta(Image())

    def steps(self) -> Iterator[None]:
        try:
            for records in self._snapshot.records():
                for record in records:
                    self._delta.replay(record)
                self._delta.finish_topics(keep=1)
                yield
        except (CorruptBatch, UnknownRecord) as error:
            raise MetadataError(f"snapshot {self._id.name}: {error}") from error

    def image(self) -> Image:
        return self._delta.publish(
            offset=Offset(self._id.offset - 1),
            epoch=self._id.epoch,
            timestamp=self._snapshot.timestamp,
        )


def voters_in(data: Buffer) -> Iterator[tuple[Offset, tuple[Voter, ...]]]:
    """The voters records in some batches, by offset."""
    for at, header in batches(data):
        if not header.is_control:
            continue
        for place, record in enumerate(read_records(memoryview(data)[at : at + header.size])):
            if ControlType.of(record.key) is ControlType.KRAFT_VOTERS:
                yield Offset(header.base_offset + place), read_voters(record.value or b"")
