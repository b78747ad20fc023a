"""Writes a snapshot when enough was published since the last one, or after enough time.

Enough means that replaying the log would take longer than loading the snapshot. So a restarting
node reads at most twice its cluster's metadata, and no more is written in snapshots than in the
log. Kafka's settings limit this from above.

Each snapshot ends a segment, so that older segments can be dropped and a start scans little. A full
disk costs a snapshot, never the node.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from riverrun.metadata.image import Image
from riverrun.metadata.images import Images
from riverrun.metadata.log_store import MetadataStore
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshot import BOOTSTRAP, snapshot_batches
from riverrun.model.ids import Offset
from riverrun.model.settings import MiB
from riverrun.ports.clock import Clock
from riverrun.ports.files import File
from riverrun.raft.types import SnapshotId, VoterSet

EARLY_BYTES: Final = MiB
"""This much is replayed in less than a second, so it is not worth a snapshot."""
RETRY_SECONDS: Final = 60.0
"""Pause after a snapshot failed for lack of space."""

log = structlog.get_logger(__name__)


class FailedSync(Exception):
    """The content of the disk is unknown: the node must stop."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Snapshots:
    """``published`` reports each image; ``run`` writes."""

    def __init__(
        self, store: MetadataStore, images: Images, *, settings: MetadataSettings, clock: Clock
    ) -> None:
        self._store = store
        self._images = images
        self._settings = settings
        self._clock = clock
        self._due = asyncio.Event()
        self._writing = asyncio.Lock()
        newest = store.latest_snapshot
        self._end = newest.offset if newest is not None else Offset(0)
        self._bytes_behind = 0

    def published(self, size: int) -> None:
        self._bytes_behind += size
        if self._is_enough():
            self._due.set()

    def _is_enough(self) -> bool:
        newest = self._store.latest_snapshot
        last = self._store.snapshot_size(newest) if newest is not None else None
        return self._bytes_behind >= min(self._settings.snapshot_bytes, max(last or 0, EARLY_BYTES))

    def installed(self, snapshot: SnapshotId) -> None:
        """The leader's snapshot replaced all earlier ones."""
        self._end = max(self._end, snapshot.offset)
        self._bytes_behind = 0

    async def run(self) -> None:
        interval = self._settings.snapshot_interval_ms / 1000 or None
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._due.wait()
            except TimeoutError:
                if not self._bytes_behind:
                    continue
            try:
                await self.take()
            except OSError as error:
                log.warning("no disk space for a metadata snapshot", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._due.set()
                continue
            if not self._is_enough():  # published meanwhile
                self._due.clear()

    async def take(self) -> None:
        """Write a snapshot of the current image, and delete files that are no longer needed."""
        async with self._writing:
            image = self._images.current
            if image.offset < self._end:
                self._bytes_behind = 0
                return
            covered = self._bytes_behind
            end = Offset(image.offset + 1)
            await self.write(image, self._store.voters_at(end))
            self._end = max(self._end, end)
            self._bytes_behind -= min(covered, self._bytes_behind)
            if self._store.log.segments.active.size:
                self._store.log.roll(self._clock.now_ms())
            await self._store.remove_old_snapshots()

    async def write(self, image: Image, voters: VoterSet) -> None:
        """Written in slices of a few milliseconds. The file gets its name when it is durable."""
        snapshot = SnapshotId(Offset(image.offset + 1), image.epoch)
        assert image.offset >= 0 or snapshot == BOOTSTRAP, f"no name for {snapshot}"
        folder, in_thread = self._store.snapshots, self._store.in_thread
        file = await in_thread(lambda: folder.begin(snapshot))
        place = 0
        try:
            for batch in snapshot_batches(image, voters.voters, self._clock.now_ms()):
                await self._write_at(file, place, batch)
                place += len(batch)
        except (OSError, asyncio.CancelledError):
            folder.abandon(snapshot, file)
            raise
        try:
            size = await in_thread(lambda: folder.finish(snapshot, file))
        except OSError as error:
            raise FailedSync(error) from error
        self._store.add_snapshot(snapshot, size)

    async def _write_at(self, file: File, place: int, batch: bytes) -> None:
        """In a thread, because a write may wait for the journal of the file system. The caller
        closes the file when it is cancelled, so the thread has ended then."""
        writing = asyncio.ensure_future(self._store.in_thread(lambda: file.write_at(place, batch)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            raise
