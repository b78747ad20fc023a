"""Publishes committed metadata in log order: from a snapshot, from the log, or from images that
this node wrote.

Long work is sliced, and an image is complete before it is published, so subscribers can be quick.
Nothing uncommitted is ever published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from riverrun.metadata import opening
from riverrun.metadata.delta import Delta
from riverrun.metadata.difference import Difference
from riverrun.metadata.image import Image
from riverrun.metadata.images import Images, Publication
from riverrun.metadata.loading import Loading
from riverrun.metadata.log_store import MetadataStore
from riverrun.metadata.quorum import MetadataError, Voter
from riverrun.metadata.snapshot import Snapshot
from riverrun.metadata.snapshotter import Snapshots
from riverrun.metadata.waiting import Waiting
from riverrun.model.errors import KafkaError
from riverrun.model.ids import Offset
from riverrun.raft.types import SnapshotId

Subscriber = Callable[[Delta, Image], None]
Preparation = Callable[[Delta, Image], Awaitable[None]]


PUBLISHED_BYTES_MAX: Final = 64 * 1024
"""Read for one image: subscribers apply about a thousand changed partitions in one iteration."""


class Publisher:
    """``committed`` sets the limit; ``run`` publishes up to it."""

    def __init__(
        self, store: MetadataStore, images: Images, snapshots: Snapshots, committed: Offset
    ) -> None:
        self.is_stopped = False
        """The disk failed: publish nothing more."""
        self.high_watermark = committed
        self.waiting = Waiting()
        self.preparation: Preparation | None = None
        self.subscribers: list[Subscriber] = []
        self.replayed: Callable[[], None] = lambda: None
        """Called when everything committed is replayed, and after each image."""
        self._store = store
        self._images = images
        self._snapshots = snapshots
        self._work = asyncio.Event()

    def committed(self, high_watermark: Offset) -> None:
        self.high_watermark = max(self.high_watermark, high_watermark)
        self.wake()

    def wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await self.publish_committed()

    async def publish_committed(self) -> None:
        while (publication := await self._next()) is not None:
            if self.preparation is not None:
                await self.preparation(publication.delta, publication.image)
            if self.is_stopped:
                return
            self._publish(publication)
        self.replayed()

    async def _next(self) -> Publication | None:
        images = self._images
        while True:
            if (installed := self._store.installed) is not None:
                self._store.installed = None
                self._snapshots.installed(installed[0])
                if installed[0].offset > images.current.offset + 1:
                    return await self._from_snapshot(*installed)
            written = images.first_written()
            if written is not None and written.image.offset < self.high_watermark:
                return written
            end = self.high_watermark
            if written is not None:
                end = min(end, written.start)
            if images.next_offset >= end:
                return None
            data = await self._read(end)
            if data is not None:
                await in_slices(images.replay(data))
                if (publication := images.replayed()) is not None:
                    return publication

    async def _read(self, end: Offset) -> bytes | None:
        """Returns None if a snapshot replaced the log meanwhile."""
        try:
            data = await self._store.read(self._images.next_offset, PUBLISHED_BYTES_MAX, end)
        except KafkaError as error:
            if self._store.installed is not None:
                return None
            raise MetadataError(f"the metadata log cannot be read: {error}") from error
        assert data, f"nothing from {self._images.next_offset} to {end}"
        return data

    async def _from_snapshot(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> Publication:
        image = await image_of(snapshot_id, snapshot)
        difference = Difference(self._images.current, image)
        await in_slices(difference.steps())
        return Publication(delta=difference.delta, image=difference.image, start=Offset(0), size=0)

    def _publish(self, publication: Publication) -> None:
        self._images.published(publication)
        self._snapshots.published(publication.size)
        for subscriber in self.subscribers:
            subscriber(publication.delta, publication.image)
        if publication.waiter is not None and not publication.waiter.done():
            publication.waiter.set_result(publication.image)
        self.waiting.reached(publication.image.offset)
        self.replayed()

    def forget_written(self, error: BaseException) -> None:
        """The result of our uncommitted records is unknown: fail their waiters."""
        for publication in self._images.forget_written(self.high_watermark):
            if publication.waiter is not None and not publication.waiter.done():
                publication.waiter.set_exception(error)
        self.waiting.fail(error, self.high_watermark)

    def stop(self, error: BaseException) -> None:
        """Drop everything that was not published."""
        self.is_stopped = True
        for publication in self._images.forget_written(Offset(0)):
            if publication.waiter is not None and not publication.waiter.done():
                publication.waiter.set_exception(error)
        self.waiting.fail_all(error)


async def image_of(snapshot_id: SnapshotId, snapshot: Snapshot) -> Image:
    loading = Loading(snapshot_id, snapshot)
    await in_slices(loading.steps())
    return loading.image()


async def in_slices(work: Iterator[None]) -> None:
    """Yield to the event loop after each step. The steps have a bounded size, so unlike ``Yielder``
    this needs no clock."""
    for _ in work:
        await asyncio.sleep(0)


async def load(
    store: MetadataStore,
    me: Voter,
    renew_directory: Callable[[], UUID] | None,
    *,
    may_vote: bool,
    knows_others: bool,
) -> tuple[Voter, Images]:
    """Update this node's identity, and the image of the newest snapshot."""
    found, loss = await store.load()
    if loss is not None:
        if opening.gives_up_its_directory(
            loss, store.voters.voters, me, may_vote=may_vote, knows_others=knows_others
        ):
            if renew_directory is None:
                raise MetadataError(loss)
            me = replace(me, directory_id=await store.in_thread(renew_directory))
        await store.start_over(found[0] if found is not None else None, loss)
    return me, Images(Image() if found is None else await image_of(*found))
