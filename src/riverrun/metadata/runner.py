"""The metadata log of a node that stands alone: the only voter of its quorum.

Appending checks the records against the newest image, writes them as one batch, syncs, and only
then publishes the image that contains them: nobody sees what a power cut could take back. All
appends that wait share the next sync. A quorum of several nodes later replaces the sync by the
agreement of a majority, and nothing else.

A failed sync ends ``run`` with the error, and with it the node: nobody knows what is on the disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

import structlog

from riverrun.metadata import quorum
from riverrun.metadata.bootstrap import first_records, sole_voter
from riverrun.metadata.delta import Delta
from riverrun.metadata.description import QuorumDescription, describe_sole_voter
from riverrun.metadata.flushed import FlushedOffset
from riverrun.metadata.image import Image
from riverrun.metadata.loading import Loading, SnapshotFolder
from riverrun.metadata.quorum import MetadataError, QuorumState, Voter
from riverrun.metadata.records import METADATA_VERSION_FEATURE, AbortTransactionRecord, encode
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshot import BOOTSTRAP, SnapshotId, snapshot_batches
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.records.batch import read_header
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.flush import FlushJob
from riverrun.storage.log import ColdRead, Log
from riverrun.storage.segment import DELETED_SUFFIX

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

T = TypeVar("T")
Subscriber = Callable[[Delta, Image], None]
Preparation = Callable[[Delta, Image], Iterator[None]]

READ_BYTES_MAX: Final = 1024 * 1024
RECORDS_MAX: Final = 20_000
"""Records of one append: Kafka's largest request makes half as many."""
PENDING_MAX: Final = 10_000
"""Appends that wait for a sync; the controller, who appends, keeps a limit far below."""
SNAPSHOT_RETRY_SECONDS: Final = 60.0
"""After a snapshot found no room on the disk."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pending:
    """An image that waits for its records to be durable."""

    delta: Delta
    image: Image
    size: int
    waiter: asyncio.Future[Image] | None
    """None for what a start writes by itself."""


class MetadataLog:
    """Opened by ``open``, kept going by ``run``, ended by ``stop``."""

    def __init__(
        self, store: Log, *, files: Files, me: Voter, clock: Clock, settings: MetadataSettings
    ) -> None:
        self.node_id = me.id
        self.epoch = LeaderEpoch(0)
        self.voters: tuple[Voter, ...] = (me,)
        self.current = Image()
        """What is durable; never goes back."""
        self._newest = self.current
        self._store = store
        self._files = files
        self._clock = clock
        self._settings = settings
        self._snapshots = SnapshotFolder(files, store.path)
        self._flushed = FlushedOffset(files, store.path)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="metadata")
        self._subscribers: list[Subscriber] = []
        self._preparation: Preparation | None = None
        self._pending: list[_Pending] = []
        self._settling: list[tuple[Offset, asyncio.Future[Image]]] = []
        self._work = asyncio.Event()
        self._flushing: tuple[FlushJob, asyncio.Future[None]] | None = None
        self._failure: BaseException | None = None
        self._snapshot_due = asyncio.Event()
        self._snapshotting = asyncio.Lock()
        self._snapshot_offset = Offset(0)
        self._bytes_behind_snapshot = 0

    @classmethod
    async def open(
        cls,
        store: Log,
        *,
        files: Files,
        node_id: NodeId,
        directory_id: UUID,
        controller_endpoints: Mapping[str, tuple[str, int]],
        clock: Clock,
        settings: MetadataSettings,
        cluster_settings: Mapping[str, str],
    ) -> MetadataLog:
        """Read what there is, and lead a new epoch of it.

        ``cluster_settings`` are written once, into a log that has nothing yet. Raises
        ``MetadataError`` for a directory that is not ours to lead or that cannot be read.
        """
        me = Voter(id=node_id, directory_id=directory_id, endpoints=dict(controller_endpoints))
        opened = cls(store, files=files, me=me, clock=clock, settings=settings)
        try:
            loading = await opened._load()
            await opened._lead(loading, me)
            if METADATA_VERSION_FEATURE not in opened._newest.features:
                opened._write(first_records(cluster_settings))
            await opened._commit()
        except BaseException:
            opened._close()
            raise
        return opened

    @property
    def end_offset(self) -> Offset:
        return self._store.end_offset

    @property
    def newest(self) -> Image:
        """What the active controller judges against, uncommitted records included."""
        return self._newest

    @property
    def leader(self) -> NodeId | None:
        return self.node_id

    @property
    def is_active(self) -> bool:
        """Whether we lead, and all that former leaders wrote is replayed: we may judge."""
        return self._failure is None

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None:
        """Where the leader that we follow listens."""
        for host, port in self.voters[0].endpoints.values():
            return self.node_id, host, port
        return None

    def heard_from(self, node: NodeId) -> float | None:
        """When the last exchange with a node succeeded, by the monotonic clock."""
        return self._clock.monotonic() if node == self.node_id else None

    def describe(self) -> QuorumDescription:
        return describe_sole_voter(
            self.voters[0],
            epoch=self.epoch,
            high_watermark=self.high_watermark,
            end_offset=self.end_offset,
            now_ms=self._clock.now_ms(),
        )

    def on_leadership(self, callback: Callable[[bool, LeaderEpoch], None]) -> None:
        """Call when ``is_active`` changes, and now if it is so already."""
        if self.is_active:
            callback(True, self.epoch)

    async def settled(self) -> None:
        """Wait until all that ``newest`` holds now is committed and published."""
        if self._pending:
            waiter: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
            self._settling.append((self._newest.offset, waiter))
            await waiter

    async def resign(self) -> None:
        """Hand the leadership over, if there is anybody to take it."""

    @property
    def high_watermark(self) -> Offset:
        return self._store.high_watermark

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call with each image that is published from now on and what changed, in order."""
        self._subscribers.append(subscriber)

    def prepare_with(self, preparation: Preparation) -> None:
        """Go through this before each image is published: what takes long, in small steps."""
        self._preparation = preparation

    def append(self, records: Sequence[Record]) -> asyncio.Future[Image]:
        """One atomic batch, written when this returns; the image with it once it is published.

        An assertion fails, and nothing changes, for records that cannot follow; OSError, and
        nothing changes, when there is no room for them.
        """
        waiter: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        self._write(records, waiter)
        self._work.set()
        return waiter

    async def run(self) -> None:
        """Sync, publish and write snapshots until cancelled; raises when the disk fails."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_forever())
                tasks.create_task(self._snapshot_forever())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def stop(self) -> None:
        """Make durable what was appended, and close. To be called when ``run`` has ended."""
        try:
            if self._failure is None:
                await self._commit()
        finally:
            self._close()

    def _close(self) -> None:
        self._executor.shutdown(wait=False)
        self._flushed.close()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    # Starting

    async def _load(self) -> Loading:
        await self._in_thread(self._snapshots.remove_parts)
        found = await self._in_thread(self._snapshots.newest)
        loading = Loading()
        if found is not None:
            await _in_slices(loading.take_snapshot(*found))
        if self._store.damage is not None:
            raise MetadataError(
                f"the metadata log in {self._store.path} has lost what was durable "
                f"({self._store.damage}): restore the directory from a copy"
            )
        self._flushed.check(max(self._store.end_offset, Offset(loading.offset + 1)))
        if self._store.end_offset <= loading.offset:
            # The log ended before the snapshot, or nothing of it was left.
            self._store.truncate_fully_and_start_at(Offset(loading.offset + 1))
        if self._store.start_offset > loading.offset + 1:
            raise MetadataError(
                f"the metadata log begins at offset {self._store.start_offset}, and no snapshot in "
                f"{self._store.path} reaches up to it: restore the directory from a copy"
            )
        while loading.offset + 1 < self._store.end_offset:
            data = await self._read(Offset(loading.offset + 1))
            if not data or read_header(data).base_offset > loading.offset + 1:
                await self._cut(Offset(loading.offset + 1))
                break
            await _in_slices(loading.take_batches(data))
        self._flushed.check(self._store.end_offset)
        return loading

    async def _read(self, offset: Offset) -> bytes:
        found = self._store.read(offset, max_bytes=READ_BYTES_MAX, end=self._store.end_offset)
        if isinstance(found, ColdRead):
            cold = found
            found = await self._in_thread(cold.load)
            cold.adopt()
        return bytes(found.data)

    async def _cut(self, offset: Offset) -> None:
        """Cut off what follows a hole.

        A power cut may take the end of one segment and leave the beginning of the next. Syncs go
        in the order of the log, so nothing behind the hole was ever durable for anybody.
        """
        log.warning("metadata log cut at a hole", path=self._store.path, offset=offset)
        self._store.truncate_to(offset)
        await self._in_thread(lambda: self._files.sync_directory(self._store.path))

    async def _lead(self, loading: Loading, me: Voter) -> None:
        """Begin a new epoch: what was read is committed, for it was all that anybody had."""
        writes_voters = sole_voter(loading.voters, me)
        now = self._clock.now_ms()
        if loading.voters is None and loading.offset < 0:
            await self._write_snapshot(Image(timestamp=now))
        state = await self._in_thread(
            lambda: quorum.read_quorum_state(self._files, self._store.path)
        )
        before = max(loading.epoch, self._store.latest_epoch, state.epoch if state else 0)
        self.epoch = LeaderEpoch(before + 1)
        state = QuorumState(epoch=self.epoch, leader=me.id)
        await self._in_thread(
            lambda: quorum.write_quorum_state(self._files, self._store.path, state)
        )
        self.current = self._newest = loading.image()
        self._bytes_behind_snapshot = loading.bytes_behind_snapshot
        is_unsure = loading.offset >= self._flushed.read()
        if is_unsure:
            await self._secure()
        records = [quorum.leader_change(me.id, self.voters, now)]
        if writes_voters or loading.offset < 0:
            records += [quorum.kraft_version(now), quorum.voters_record(self.voters, now)]
        self._append(records, Delta(self._newest), is_control=True)
        if loading.is_in_transaction and not is_unsure:
            # Its writer is gone and cannot end it; a snapshot has left it out already.
            abort = AbortTransactionRecord(reason="the leader that began it is gone")
            self._append([NewRecord(encode(abort), timestamp=now)], Delta(self._newest))

    async def _secure(self) -> None:
        """Copy what was read into a snapshot, and begin the log anew behind it.

        The end of the log may lie in memory alone, left by a process that was killed before or
        after a sync that failed. The kernel would call its pages clean: no later sync would write
        them, and a power cut would take them and all that follows. A snapshot is written afresh.
        """
        await self._write_snapshot(self._newest)
        self._snapshot_offset = self._store.end_offset
        self._bytes_behind_snapshot = 0
        self._store.truncate_fully_and_start_at(self._store.end_offset)
        await self._in_thread(lambda: self._files.sync_directory(self._store.path))
        await self._in_thread(self._remove_dropped)

    # Appending

    def _write(
        self, records: Sequence[Record], waiter: asyncio.Future[Image] | None = None
    ) -> None:
        if self._failure is not None:
            raise self._failure
        assert 0 < len(records) <= RECORDS_MAX, f"{len(records)} records in one append"
        assert len(self._pending) < PENDING_MAX, f"{len(self._pending)} appends wait"
        # Replayed before they are written: what cannot be replayed must never reach the log.
        delta = Delta(self._newest)
        for record in records:
            delta.replay(record)
        now = self._clock.now_ms()
        self._append([NewRecord(encode(r), timestamp=now) for r in records], delta, waiter)

    def _append(
        self,
        records: Sequence[NewRecord],
        delta: Delta,
        waiter: asyncio.Future[Image] | None = None,
        *,
        is_control: bool = False,
    ) -> None:
        start = self._store.end_offset
        assert start == self._newest.offset + 1, f"{start} follows {self._newest.offset}"
        image = delta.publish(
            offset=Offset(start + len(records) - 1),
            epoch=self.epoch,
            timestamp=records[-1].timestamp,
        )
        batch = build_batch(records, base_offset=start, leader_epoch=self.epoch, control=is_control)
        # As a follower would: offsets and epoch are in the batch already.
        self._store.append_as_follower(batch)
        assert self._store.end_offset == image.offset + 1, f"the log ends at {start}"
        self._newest = image
        self._pending.append(_Pending(delta, image, len(batch), waiter))

    async def _commit_forever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            await self._commit()
            if self._bytes_behind_snapshot >= self._settings.snapshot_bytes:
                self._snapshot_due.set()

    async def _commit(self) -> None:
        """Sync once for all that wait, and publish their images in order."""
        while self._pending:
            try:
                await self._flush()
            except OSError as error:
                self._fail(error)
                raise
            durable = self._store.flushed_offset
            self._flushed.write(durable)
            self._store.advance_high_watermark(durable)
            while self._pending and self._pending[0].image.offset < durable:
                due = self._pending[0]
                if self._preparation is not None:
                    await _in_slices(self._preparation(due.delta, due.image))
                if self._failure is None:
                    self._publish(self._pending.pop(0))

    async def _flush(self) -> None:
        """Sync what was appended so far.

        A sync whose waiter was cancelled goes on, and the next one to ask gets its outcome: were
        a failure lost, the sync after it would succeed without the data.
        """
        if self._flushing is None:
            job = self._store.begin_flush()
            if job is None:
                return  # the node's own last flush was quicker
            loop = asyncio.get_running_loop()
            self._flushing = job, loop.run_in_executor(self._executor, job.run)
        job, done = self._flushing
        try:
            await asyncio.shield(done)
        except OSError:
            self._store.flush_failed(job)
            raise
        self._flushing = None
        self._store.flushed(job)

    def _publish(self, pending: _Pending) -> None:
        assert pending.image.offset > self.current.offset, "images go back"
        self.current = pending.image
        self._bytes_behind_snapshot += pending.size
        for subscriber in self._subscribers:
            subscriber(pending.delta, pending.image)
        if pending.waiter is not None and not pending.waiter.done():
            pending.waiter.set_result(pending.image)
        while self._settling and self._settling[0][0] <= pending.image.offset:
            _, waiter = self._settling.pop(0)
            if not waiter.done():
                waiter.set_result(pending.image)

    def _fail(self, error: OSError) -> None:
        """After a failed sync nothing that was not durable may ever be spoken of again."""
        log.error("metadata log failed", path=self._store.path, error=str(error))
        self._failure = error
        for pending in self._pending:
            if pending.waiter is not None and not pending.waiter.done():
                pending.waiter.set_exception(error)
        self._pending.clear()
        for _, waiter in self._settling:
            if not waiter.done():
                waiter.set_exception(error)

    # Snapshots

    async def _snapshot_forever(self) -> None:
        interval = self._settings.snapshot_interval_ms / 1000 or None
        while True:
            try:
                async with asyncio.timeout(interval):
                    await self._snapshot_due.wait()
            except TimeoutError:
                if not self._bytes_behind_snapshot:
                    continue
            self._snapshot_due.clear()
            try:
                await self.snapshot()
            except OSError as error:
                if self._failure is not None:
                    raise
                log.warning("no room for a metadata snapshot", error=str(error))
                await asyncio.sleep(SNAPSHOT_RETRY_SECONDS)
                self._snapshot_due.set()

    async def snapshot(self) -> None:
        """Write a snapshot of what is current, and delete what nobody needs beside it."""
        async with self._snapshotting:
            await self._snapshot()

    async def _snapshot(self) -> None:
        image = self.current
        if image.offset < self._snapshot_offset:
            return
        covered = self._bytes_behind_snapshot
        await self._write_snapshot(image)
        self._snapshot_offset = Offset(image.offset + 1)
        self._bytes_behind_snapshot -= covered
        if self._store.active.size:
            # Each snapshot ends a segment, so that there are segments to drop, and the log that
            # a start has to look through stays short.
            self._store.roll(self._clock.now_ms())
        oldest = await self._in_thread(self._snapshots.remove_old)
        if oldest is not None and oldest.offset > self._store.start_offset:
            await self._drop_before(oldest.offset)

    async def _drop_before(self, offset: Offset) -> None:
        """Let the log begin where the oldest snapshot ends; whole segments below go.

        One by one, each durably gone before the next: a power cut may undo any change of a
        directory that was not synced, and a log with a segment missing in its middle is cut there.
        """
        for segment in self._store.segments[:-1]:
            if segment.next_offset > offset:
                break
            self._store.delete_records_before(segment.next_offset)
            self._store.enforce_retention(self._clock.now_ms())
            await self._in_thread(lambda: self._files.sync_directory(self._store.path))
        self._store.delete_records_before(offset)
        await self._in_thread(self._remove_dropped)

    def _remove_dropped(self) -> None:
        """Segments that the log has let go, in this life or another."""
        for name in self._files.list_directory(self._store.path):
            if name.endswith(DELETED_SUFFIX):
                self._files.unlink(os.path.join(self._store.path, name))

    async def _write_snapshot(self, image: Image) -> None:
        """In slices of a few milliseconds; the file has its name only once it is durable."""
        snapshot = SnapshotId(Offset(image.offset + 1), image.epoch)
        assert image.offset >= 0 or snapshot == BOOTSTRAP, f"no name for {snapshot}"
        file = await self._in_thread(lambda: self._snapshots.begin(snapshot))
        place = 0
        try:
            for batch in snapshot_batches(image, self.voters, self._clock.now_ms()):
                file.write_at(place, batch)
                place += len(batch)
                await asyncio.sleep(0)
        except (OSError, asyncio.CancelledError):
            self._snapshots.abandon(snapshot, file)
            raise
        try:
            await self._in_thread(lambda: self._snapshots.finish(snapshot, file))
        except OSError as error:
            self._fail(error)
            raise


async def _in_slices(work: Iterator[None]) -> None:
    for _ in work:
        await asyncio.sleep(0)
