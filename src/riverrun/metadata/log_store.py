"""The metadata log on disk: what the quorum reads, appends, truncates, flushes and persists.

This module makes no decisions. Appends go to the page cache at once. Operations that must be
durable are awaited, one at a time. Voters count as soon as their record is appended, committed or
not, and no longer after truncation.

At start it looks for lost records, by the flushed-offset checkpoint and by damage in the middle of
the log. A voter that lost acknowledged records must not vote.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import structlog

from riverrun.metadata import quorum
from riverrun.metadata.flushed import FlushedOffset
from riverrun.metadata.loading import KEPT_SNAPSHOTS, SnapshotFolder, voters_in
from riverrun.metadata.quorum import MetadataError
from riverrun.metadata.reserve import Reserve, is_full
from riverrun.metadata.snapshot import BOOTSTRAP, InvalidSnapshot, Snapshot
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, Offset
from riverrun.ports.clock import Clock
from riverrun.ports.files import File, Files
from riverrun.raft.effects import ControlRecord, LeaderChange
from riverrun.raft.log_view import end_of_epoch
from riverrun.raft.types import (
    EpochEnd,
    QuorumState,
    SnapshotId,
    VoterHistory,
    VotersAt,
    VoterSet,
)
from riverrun.records.batch import CorruptBatch, batches, read_header
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.append_policy import Appended
from riverrun.storage.log import Log
from riverrun.storage.segment.reader import ColdRead
from riverrun.storage.segment.segment import DELETED_SUFFIX, Segment

T = TypeVar("T")

READ_BYTES_MAX: Final = 1024 * 1024
NO_ROOM_SECONDS: Final = 0.25
FETCHED: Final = "-fetched"
"""Part of the name of a leader's snapshot until it is complete."""

log = structlog.get_logger(__name__)


class MetadataStore:
    """``load`` opens it and must come first; ``close`` ends it."""

    def __init__(self, store: Log, *, files: Files, clock: Clock) -> None:
        self.log = store
        self.snapshots = SnapshotFolder(files, store.path)
        self.installed: tuple[SnapshotId, Snapshot] | None = None
        """The last snapshot received from a leader, until it is made an image."""
        self.wrote_control: Callable[[int, int], None] = lambda timestamp, size: None
        """Called after control records were appended, with their time and size."""
        self._files = files
        self._clock = clock
        self._flushed = FlushedOffset(files, store.path)
        self._reserve = Reserve(files, store.path)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="metadata")
        self._disk = asyncio.Lock()
        self._history = VoterHistory()
        self._sizes: dict[SnapshotId, int] = {}
        self._incoming: tuple[SnapshotId, File] | None = None
        self._before = EpochEnd(LeaderEpoch(0), Offset(0))
        """The epoch of the last record before the log start, and the log start offset."""

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        self._flushed.close()

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def _sync_names(self) -> None:
        await self.in_thread(lambda: self._files.sync_directory(self.log.path))

    @property
    def start_offset(self) -> Offset:
        return self.log.start_offset

    @property
    def end_offset(self) -> Offset:
        return self.log.end_offset

    @property
    def flushed_offset(self) -> Offset:
        return self.log.flushed_offset

    @property
    def last_epoch(self) -> LeaderEpoch:
        return max(self.log.latest_epoch, self._before.epoch)

    def epoch_end(self, epoch: LeaderEpoch) -> EpochEnd | None:
        return end_of_epoch(
            epoch, entries=self.log.epochs.entries, start=self._before, end_offset=self.end_offset
        )

    def holds_committed(self, epoch: LeaderEpoch, committed: Offset) -> bool:
        """Whether the committed offset has reached an epoch, so that everything before it is
        committed."""
        if self._before.epoch >= epoch:
            return True
        starts = [start for known, start in self.log.epochs.entries if known == epoch]
        return bool(starts) and committed > starts[0]

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        newest = max(self._sizes, default=BOOTSTRAP)
        return None if newest == BOOTSTRAP else newest

    def snapshot_size(self, snapshot: SnapshotId) -> int | None:
        return self._sizes.get(snapshot)

    @property
    def voters(self) -> VotersAt:
        return self._history.latest

    def assume_voters(self, voters: VoterSet) -> None:
        """No file names the voters; use the ones decided by the caller."""
        assert not len(self.voters.voters), f"{self.voters} are known"
        self._history.reset(VotersAt(voters, Offset(-1)))

    def voters_at(self, end: Offset) -> VoterSet:
        """The voters as a snapshot that ends there must name them."""
        return self._history.at(end).voters

    async def load(self) -> tuple[tuple[SnapshotId, Snapshot] | None, str | None]:
        """The newest complete snapshot, and a description of lost records. After a loss only
        ``start_over`` may follow."""
        await self.in_thread(self.snapshots.remove_parts)
        await self.in_thread(self._reserve.hold)
        found = await self.in_thread(self.snapshots.newest)
        reached = Offset(0)
        if found is not None:
            self._note_snapshot(*found)
            reached = found[0].offset
        if self.log.damage is not None:
            return found, (
                f"the metadata log in {self.log.path} has lost durable records "
                f"({self.log.damage}): restore the directory from a copy"
            )
        loss = self._flushed.missing(max(self.log.end_offset, reached))
        if loss is None:
            loss = await self._scan(reached) or await self._missing_state()
        if loss is None:
            await self._secure()
        else:
            self._history.truncate(reached)  # the log and its voters will be dropped
        return found, loss

    def _note_snapshot(self, snapshot_id: SnapshotId, snapshot: Snapshot) -> None:
        self._sizes[snapshot_id] = snapshot.size
        voters = VoterSet(snapshot.voters or ())
        self._history.reset(VotersAt(voters, Offset(snapshot_id.offset - 1)))

    async def _scan(self, snapshot_end: Offset) -> str | None:
        """Find the voters in the log after the snapshot, and truncate the log at a gap."""
        store = self.log
        newest = max(self._sizes, default=BOOTSTRAP)
        if store.end_offset < snapshot_end:
            store.truncate_fully_and_start_at(snapshot_end)
        if store.start_offset > snapshot_end:
            raise MetadataError(
                f"the metadata log begins at offset {store.start_offset}, and no snapshot in "
                f"{store.path} reaches up to it: restore the directory from a copy"
            )
        store.advance_high_watermark(snapshot_end)
        await self._find_start(newest)
        at = snapshot_end
        while at < store.end_offset:
            data = await self.read(at, READ_BYTES_MAX)
            if not data or read_header(data).base_offset > at:
                await self._cut_hole(at)
                break
            for offset, voters in voters_in(data):
                if offset >= snapshot_end:
                    self._history.add(offset, VoterSet(voters))
            at = Offset(max(header.next_offset for _, header in batches(data)))
        return self._flushed.missing(store.end_offset)

    async def _find_start(self, newest: SnapshotId) -> None:
        """The log start by its oldest snapshot, and its epoch."""
        store = self.log
        if store.start_offset == store.end_offset == newest.offset:
            self._before = EpochEnd(newest.epoch, newest.offset)
            return
        listed = await self.in_thread(self.snapshots.listed)
        starts = [one for one in listed if store.start_offset <= one.offset <= newest.offset]
        if starts:
            store.delete_records_before(starts[0].offset)
            self._before = EpochEnd(starts[0].epoch, starts[0].offset)

    async def _cut_hole(self, offset: Offset) -> None:
        """Truncate everything after a gap.

        A power loss may take the end of one segment and leave the start of the next. Flushes go in
        log order, so nothing after the gap was ever durable.
        """
        log.warning("metadata log truncated at a gap", path=self.log.path, offset=offset)
        self.log.truncate_to(offset)
        await self._sync_names()

    async def _secure(self) -> None:
        """Make the loaded log durable, because the quorum will count it as acknowledged.

        The end of the log may be in memory only, left by a process that was killed around a failed
        fsync. The kernel would report its pages as clean, and no later fsync would write them. So
        they are written again with the same content.
        """
        known = self._flushed.read()
        if known < self.end_offset:
            unsure = [segment for segment in self.log.segments if segment.next_offset > known]
            await self.in_thread(lambda: self._write_again(unsure))
            self.log.lower_recovery_point(known)
        await self.flush()

    def _write_again(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            with contextlib.closing(self._files.open(segment.path)) as file:
                for at in range(0, segment.size, READ_BYTES_MAX):
                    size = min(READ_BYTES_MAX, segment.size - at)
                    file.write_at(at, file.read_at(at, size))

    async def start_over(self, snapshot: SnapshotId | None, reason: str) -> None:
        """Drop the whole log, and start after a snapshot if there is one."""
        start = snapshot or BOOTSTRAP
        self.log.damage = None
        await self._begin_at(start)
        log.warning("metadata log dropped", path=self.log.path, offset=start.offset, error=reason)

    async def _begin_at(self, snapshot: SnapshotId) -> None:
        async with self._disk:
            await self.in_thread(lambda: self._flushed.lower(snapshot.offset))
            self.log.truncate_fully_and_start_at(snapshot.offset)
            self._before = EpochEnd(snapshot.epoch, snapshot.offset)
            await self._sync_names()
            self._flushed.write(snapshot.offset)
        await self.in_thread(self._remove_dropped)

    def _remove_dropped(self) -> None:
        """Delete segments that the log dropped in this run or an earlier one."""
        for name in self._files.list_directory(self.log.path):
            if name.endswith(DELETED_SUFFIX):
                self._files.unlink(os.path.join(self.log.path, name))

    async def _missing_state(self) -> str | None:
        """The error text for a log with records of others but without election state. The state was
        durable before the first record, and without it a voter could vote twice in one epoch. A
        sole voter does not need it."""
        path = os.path.join(self.log.path, quorum.QUORUM_STATE)
        if self.end_offset == 0 or len(self.voters.voters) < 2:
            return None
        if await self.in_thread(lambda: self._files.exists(path)):
            return None
        return f"{path} is missing: this node has lost its vote of the current epoch"

    async def read_state(self) -> QuorumState | None:
        """Durable when it returns: the content that was read may be in memory only."""
        path = self.log.path
        state = await self.in_thread(lambda: quorum.read_quorum_state(self._files, path))
        if state is not None:
            await self.persist(state)
        return state

    async def persist(self, state: QuorumState) -> None:
        """Without space this member waits, as if paused, until there is some."""
        path = self.log.path
        while True:
            try:
                await self.in_thread(lambda: quorum.write_quorum_state(self._files, path, state))
            except OSError as error:
                if not is_full(error):
                    raise
                if not await self.in_thread(self._reserve.release):
                    log.warning("no disk space for the quorum's state", path=path)
                    await asyncio.sleep(NO_ROOM_SECONDS)
            else:
                await self.in_thread(self._reserve.hold)
                return

    def append_batch(self, batch: bytes) -> None:
        """Append this leader's own batch, with offsets and epoch already set. After OSError nothing
        has changed."""
        assert read_header(batch).base_offset == self.end_offset, f"not at {self.end_offset}"
        self.log.append_as_follower(batch)

    def append_control(self, epoch: LeaderEpoch, records: Iterable[ControlRecord]) -> None:
        now = self._clock.now_ms()
        new: list[NewRecord] = []
        voters: list[tuple[int, VoterSet]] = []
        for record in records:
            if isinstance(record, LeaderChange):
                change = quorum.leader_change(record.leader, record.voters, record.granting, now)
                new.append(change)
                continue
            if self._history.latest.offset < 0:
                new.append(quorum.kraft_version(now))
            voters.append((len(new), record.voters))
            new.append(quorum.voters_record(record.voters, now))
        start = self.end_offset
        batch = build_batch(new, base_offset=start, leader_epoch=epoch, control=True)
        self.append_batch(batch)
        for place, changed in voters:
            self._history.add(Offset(start + place), changed)
        self.wrote_control(now, len(batch))

    def append(self, data: bytes) -> None:
        """Append a leader's batches, as many as there is space for. Raises if there is space for
        none."""
        rest = memoryview(data)[self._known_bytes(data) :]
        start = self.end_offset
        while rest:
            try:
                appended = self._append_some(rest)
            except (OSError, KafkaError):
                if self.end_offset == start:
                    raise
                return
            if appended is None:
                return
            for offset, voters in voters_in(rest[: appended.size_bytes]):
                self._history.add(offset, VoterSet(voters))
            rest = rest[appended.size_bytes :]

    def _append_some(self, data: memoryview) -> Appended | None:
        while True:
            try:
                return self.log.append_as_follower(data)
            except OSError as error:
                # A node that cannot store this does not learn that others lead its partitions.
                if not is_full(error) or not self._reserve.release():
                    raise

    def _known_bytes(self, data: bytes) -> int:
        """How many bytes the log has already. KafkaError unless the rest follows its end."""
        known, expected = 0, self.end_offset
        epoch = self.last_epoch
        try:
            for at, header in batches(data):
                if header.last_offset < expected and at == known:
                    known = at + header.size
                    continue
                if header.base_offset != expected or header.leader_epoch < epoch:
                    raise CorruptBatch(f"{header} where {expected} of {epoch} is next")
                expected = Offset(header.next_offset)
                epoch = LeaderEpoch(header.leader_epoch)
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        return known

    def committed(self, high_watermark: Offset) -> None:
        self.log.advance_high_watermark(high_watermark)
        self._history.forget_before(high_watermark)

    async def flush(self) -> None:
        async with self._disk:
            await self._sync()

    async def _sync(self, *, whole: bool = False) -> None:
        job = self.log.begin_flush(whole=whole)
        if job is not None:
            try:
                await self.in_thread(job.run)
            except OSError:
                self.log.flush_failed(job)
                raise
            self.log.flushed(job)
        self._flushed.write(self.log.flushed_offset)

    async def truncate(self, offset: Offset) -> None:
        assert offset >= self.log.high_watermark, f"{offset} < {self.log.high_watermark}"
        async with self._disk:
            log.info("metadata log cut", path=self.log.path, offset=offset, end=self.end_offset)
            await self.in_thread(lambda: self._flushed.lower(offset))
            self.log.truncate_to(offset)
            self._history.truncate(self.end_offset)
            # Include epochs and file names: truncated records must not return after a crash, after
            # or among new ones.
            await self._sync_names()
            await self._sync(whole=True)
        await self.in_thread(self._remove_dropped)

    async def read(self, offset: Offset, max_bytes: int, end: Offset | None = None) -> bytes:
        """Whole batches, below ``end`` if given."""
        stop = self.end_offset if end is None else end
        found = self.log.read(offset, max_bytes=max_bytes, end=stop)
        if isinstance(found, ColdRead):
            cold = found
            found = await self.in_thread(cold.load)
            cold.adopt()
        return bytes(found.data)

    async def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Empty if the snapshot was just removed; the next fetch names a newer one."""
        try:
            return await self.in_thread(lambda: self.snapshots.read(snapshot, position, max_bytes))
        except FileNotFoundError:
            return b""

    def add_snapshot(self, snapshot: SnapshotId, size: int) -> None:
        """A snapshot was written here and is durable."""
        self._sizes[snapshot] = size

    async def remove_old_snapshots(self) -> None:
        """Remove old snapshots and the log below the oldest one kept, each step durably."""
        await self.in_thread(self._reserve.hold)
        kept = (await self.in_thread(self.snapshots.listed))[-KEPT_SNAPSHOTS:]
        if not kept:
            return
        oldest = kept[0]
        self._sizes = {one: size for one, size in self._sizes.items() if one >= oldest}
        await self.in_thread(self.snapshots.remove_old)
        store = self.log
        if oldest.offset <= store.start_offset:
            return
        for segment in store.segments[:-1]:
            if segment.next_offset > oldest.offset:
                break
            store.delete_records_before(segment.next_offset)
            store.enforce_retention(self._clock.now_ms())
            await self._sync_names()
        store.delete_records_before(oldest.offset)
        if (
            store.start_offset == oldest.offset
        ):  # otherwise a leader's snapshot was installed meanwhile
            self._before = EpochEnd(oldest.epoch, oldest.offset)
        await self.in_thread(self._remove_dropped)

    async def write_snapshot(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        if position == 0:
            if self._incoming is not None:
                self.snapshots.abandon(*self._incoming, FETCHED)
                self._incoming = None
            file = await self.in_thread(lambda: self.snapshots.begin(snapshot, FETCHED))
            self._incoming = snapshot, file
        assert self._incoming is not None, f"{snapshot} was not begun"
        assert self._incoming[0] == snapshot, f"{snapshot} continues {self._incoming[0]}"
        file = self._incoming[1]
        assert file.size() == position, f"{position} is not the end of {snapshot}"
        while True:
            try:
                await self.in_thread(lambda: file.write_at(position, data))
            except OSError as error:
                if not is_full(error) or not await self.in_thread(self._reserve.release):
                    raise
            else:
                return

    async def install_snapshot(self, snapshot: SnapshotId) -> bool:
        if self._incoming is None or self._incoming[0] != snapshot:
            return False  # there was no space for a part of it
        file = self._incoming[1]
        self._incoming = None
        try:
            whole = await self.in_thread(lambda: Snapshot(file.read_at(0, file.size())))
        except InvalidSnapshot as error:
            log.warning("the leader's snapshot is damaged", error=str(error))
            self.snapshots.abandon(snapshot, file, FETCHED)
            return False
        await self.in_thread(lambda: self.snapshots.finish(snapshot, file, FETCHED))
        await self._begin_at(snapshot)
        self._note_snapshot(snapshot, whole)
        self.installed = snapshot, whole
        log.info("metadata snapshot installed", path=self.log.path, offset=snapshot.offset)
        return True
