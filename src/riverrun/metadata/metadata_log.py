"""The metadata log of a node: committed records become images, published in order.

Every node holds the log. On the quorum leader, the active controller decides against the newest
image and appends; the records are validated, written as one batch, and published when a majority
has flushed them. All other nodes read them from the log when they are committed. Nothing that could
be undone is ever visible. A single node is a quorum of one and leads at once.

Elections are in ``raft``, files in ``log_store``, snapshots in ``snapshotter``. A failing disk ends
``run`` with the error and stops the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from uuid import UUID

import structlog

from riverrun.metadata import opening
from riverrun.metadata.bootstrap import first_records
from riverrun.metadata.description import QuorumDescription, describe
from riverrun.metadata.image import Image
from riverrun.metadata.images import Images
from riverrun.metadata.log_store import MetadataStore
from riverrun.metadata.publisher import Preparation, Publisher, Subscriber, load
from riverrun.metadata.quorum import Voter
from riverrun.metadata.records import METADATA_VERSION_FEATURE, AbortTransactionRecord, encode
from riverrun.metadata.settings import MetadataSettings
from riverrun.metadata.snapshotter import FailedSync, Snapshots
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.model.invariants import state_change
from riverrun.ports.clock import Clock
from riverrun.ports.files import Files
from riverrun.ports.randomness import Randomness, SystemRandomness
from riverrun.raft.core import Raft
from riverrun.raft.driver import NoNetwork, RaftDriver, RaftNetwork
from riverrun.raft.events import Resign, Shutdown, Tick
from riverrun.raft.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    Request,
    Response,
)
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import Endpoint, ReplicaKey, SnapshotId, VoterSet
from riverrun.records.record import NewRecord, build_batch
from riverrun.storage.log import Log

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

Leadership = Callable[[bool, LeaderEpoch], None]

RECORDS_MAX: Final = 20_000
"""Records of one append. Kafka's largest request makes half as many."""
PENDING_MAX: Final = 10_000
"""Appends waiting for a majority. The controller's own limit is far below."""

log = structlog.get_logger(__name__)


class MetadataLog:
    """``open`` creates it, ``run`` drives it, ``stop`` ends it."""

    def __init__(
        self,
        store: MetadataStore,
        images: Images,
        raft: Raft,
        snapshots: Snapshots,
        *,
        me: Voter,
        network: RaftNetwork,
        clock: Clock,
        quorum_settings: QuorumSettings,
    ) -> None:
        self.node_id = me.id
        self.me = me
        self.elections_won = 0
        self.leader_changes = 0
        self._store = store
        self._images = images
        self._raft = raft
        self._clock = clock
        self._quorum_settings = quorum_settings
        self._runner = RaftDriver(raft, store, network, self, clock)
        self._snapshots = snapshots
        self._leadership: list[Leadership] = []
        self._leads_from: tuple[LeaderEpoch, Offset] | None = None
        """The epoch that we lead, and the offset of its first record."""
        self._active_epoch: LeaderEpoch | None = None
        self._publisher = Publisher(store, images, snapshots, raft.high_watermark)
        self._publisher.replayed = self._replayed
        self._failure: BaseException | None = None
        self._leader_committed: Offset | None = None
        store.wrote_control = self._wrote_control

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
        quorum_settings: QuorumSettings | None = None,
        randomness: Randomness | None = None,
        network: RaftNetwork | None = None,
        is_controller: bool = True,
        joins: bool = False,
        bootstrap: Sequence[Endpoint] = (),
        renew_directory: Callable[[], UUID] | None = None,
        listener: str = "CONTROLLER",
    ) -> MetadataLog:
        """Load the log. A sole voter leads when this returns; others must ``run`` first.

        ``network`` is None for a single-node cluster. ``bootstrap`` lists addresses that an
        observer asks for the leader. ``joins`` makes the node a voter when it has caught up.
        ``renew_directory`` durably changes the directory id: a voter that lost acknowledged records
        becomes another replica. Raises ``MetadataError`` for a directory that is not ours
        or not readable.
        """
        me = Voter(id=node_id, directory_id=directory_id, endpoints=dict(controller_endpoints))
        opened = MetadataStore(store, files=files, clock=clock)
        quorum_settings = quorum_settings or QuorumSettings()
        try:
            me, images = await load(
                opened, me, renew_directory, may_vote=is_controller, knows_others=bool(bootstrap)
            )
            snapshots = Snapshots(opened, images, settings=settings, clock=clock)
            if opening.is_first_voter(
                opened.voters.voters,
                me,
                may_reach_others=network is not None,
                knows_others=bool(bootstrap),
                may_vote=is_controller,
            ):
                opened.assume_voters(VoterSet((me,)))
                if images.current.offset < 0 and opened.end_offset == 0:
                    await snapshots.write(images.current, VoterSet((me,)))
            raft = Raft(
                me=me,
                log=opened,
                state=await opened.read_state(),
                settings=quorum_settings,
                randomness=randomness or SystemRandomness(),
                listener=listener,
                bootstrap=bootstrap,
                may_vote=is_controller,
                joins=joins,
                high_watermark=Offset(images.current.offset + 1),
            )
            self = cls(
                opened,
                images,
                raft,
                snapshots,
                me=me,
                network=network or NoNetwork(),
                clock=clock,
                quorum_settings=quorum_settings,
            )
            self._runner.post(Tick())
            if is_controller and opened.voters.voters.is_sole(me.key):
                await self._lead_alone()
        except BaseException:
            opened.close()
            raise
        return self

    async def _lead_alone(self) -> None:
        while not self.is_active or self._images.waiting:
            await self._runner.settle()
            before = self.current.offset
            await self._publisher.publish_committed()
            assert self.current.offset > before or self.is_active, "a sole voter does not lead"

    @property
    def current(self) -> Image:
        """The committed and published image; never goes back."""
        return self._images.current

    @property
    def newest(self) -> Image:
        """The image that the active controller decides against, including uncommitted records."""
        return self._images.newest

    @property
    def leader(self) -> NodeId | None:
        return self._raft.leader

    @property
    def epoch(self) -> LeaderEpoch:
        return self._raft.epoch

    @property
    def role(self) -> str:
        """Our role in the quorum, in Kafka's word."""
        return self._raft.role if self._raft.is_voter else "observer"

    @property
    def voted(self) -> NodeId:
        return self._raft.voted

    @property
    def voters(self) -> tuple[Voter, ...]:
        return self._store.voters.voters.voters

    @property
    def high_watermark(self) -> Offset:
        return self._raft.high_watermark

    @property
    def end_offset(self) -> Offset:
        return self._store.end_offset

    @property
    def store(self) -> MetadataStore:
        """The log on disk, for reading."""
        return self._store

    @property
    def is_active(self) -> bool:
        """Whether we lead, and all records of earlier leaders are committed and replayed."""
        if self._failure is not None or not self._raft.is_leader:
            return False
        return self._active_epoch == self._raft.epoch

    @property
    def lease(self) -> float | None:
        """If we lead: the monotonic time until which no other member can lead."""
        return self._raft.lease

    def leader_endpoint(self) -> tuple[NodeId, str, int] | None:
        """The endpoint of our leader."""
        leader, endpoint = self._raft.leader, self._raft.leader_endpoint
        return None if leader is None or endpoint is None else (leader, *endpoint)

    def heard_from(self, node: NodeId) -> float | None:
        """Monotonic time of the last successful exchange with a node."""
        return self._clock.monotonic() if node == self.node_id else self._raft.heard_from(node)

    def describe(self) -> QuorumDescription:
        return describe(
            self._raft,
            self.voters,
            end_offset=self.end_offset,
            now=self._clock.monotonic(),
            now_ms=self._clock.now_ms(),
        )

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call with each image published from now on and its delta, in order."""
        self._publisher.subscribers.append(subscriber)

    def prepare_with(self, preparation: Preparation) -> None:
        """Call before each image is published, and wait for it: work that takes long."""
        self._publisher.preparation = preparation

    def on_leadership(self, callback: Leadership) -> None:
        """Call when ``is_active`` changes, and now if it is already true."""
        self._leadership.append(callback)
        if self.is_active:
            callback(True, self.epoch)

    def append(self, records: Sequence[Record]) -> asyncio.Future[Image]:
        """Append one atomic batch. It is written when this returns; the future gives the published
        image.

        Invalid records fail an assertion and change nothing. Without space nothing changes either:
        another voter takes over, or OSError is raised if there is none. KafkaError NOT_CONTROLLER
        unless ``is_active``; the future fails with it when leadership is lost before the result is
        known.
        """
        if self._failure is not None:
            raise self._failure
        self._check_active()
        waiter: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        try:
            with state_change:
                self._write(records, waiter)
        except OSError as error:
            if len(self.voters) < 2:
                raise
            log.warning("no disk space to lead the metadata quorum", error=str(error))
            self._runner.post(Resign())
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "This controller has no disk space."
            ) from error
        self._runner.log_changed()
        return waiter

    async def settled(self) -> None:
        """Wait until the current ``newest`` is committed and published."""
        self._check_active()
        if self._images.waiting:
            await self._publisher.waiting.until(self.newest.offset)

    def _check_active(self) -> None:
        if not self.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This node is not the active controller.")

    async def caught_up(self) -> None:
        """Wait until everything that the leader had committed when we found it is published
        here."""
        await self._publisher.waiting.until_caught_up()

    def receive(self, request: Request) -> asyncio.Future[Response]:
        """This member's response."""
        return self._runner.receive(request)

    async def add_voter(self, voter: Voter, *, timeout_ms: int = 30_000) -> None:
        request = AddVoterRequest(voter=voter, timeout_ms=timeout_ms)
        opening.check_answer(await self.receive(request))

    async def remove_voter(self, key: ReplicaKey, *, timeout_ms: int = 30_000) -> None:
        request = RemoveVoterRequest(voter=key, timeout_ms=timeout_ms)
        opening.check_answer(await self.receive(request))

    async def run(self) -> None:
        """Take part in the quorum, publish and write snapshots until cancelled; raises when the
        disk fails."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._runner.run())
                tasks.create_task(self._publisher.run())
                tasks.create_task(self._snapshots.run())
        except ExceptionGroup as failed:
            error = failed.exceptions[0]
            self._fail(error.error if isinstance(error, FailedSync) else error)
            raise self._failure or error from failed

    async def resign(self) -> None:
        """Hand over leadership if another voter can take it. Call it before ``run`` ends."""
        if self._failure is not None or len(self.voters) < 2:
            return
        limit = self._quorum_settings.request_timeout_ms / 1000
        await self._runner.until(Shutdown(), lambda: self._raft.has_handed_over, limit)

    async def stop(self) -> None:
        """Flush and close. Call it after ``run`` has ended."""
        try:
            if self._failure is None:
                if self.is_active and len(self.voters) == 1:
                    await self._runner.settle()
                    await self._publisher.publish_committed()
                else:
                    await self._runner.finish_flush()
        except OSError as error:
            self._fail(error)
            raise
        finally:
            self._fail(KafkaError(ErrorCode.NOT_CONTROLLER, "The node is stopping."))
            self._store.close()

    async def snapshot(self) -> None:
        """Write a snapshot of the current image, and delete files that are no longer needed."""
        await self._snapshots.take()

    def _fail(self, error: BaseException) -> None:
        """After a failed fsync, nothing that was not durable may be reported any more."""
        if self._failure is None:
            self._failure = error
            if not isinstance(error, KafkaError):
                log.error("metadata log failed", path=self._store.log.path, error=str(error))
        self._publisher.stop(error)

    def _write(
        self, records: Sequence[Record], waiter: asyncio.Future[Image] | None = None
    ) -> None:
        assert 0 < len(records) <= RECORDS_MAX, f"{len(records)} records in one append"
        assert self._images.waiting < PENDING_MAX, f"{self._images.waiting} appends wait"
        # Replayed before they are written: records that cannot be replayed must never reach the
        # log.
        delta = self._images.draft(records)
        now = self._clock.now_ms()
        start, epoch = self._store.end_offset, self._raft.epoch
        new = [NewRecord(encode(record), timestamp=now) for record in records]
        batch = build_batch(new, base_offset=start, leader_epoch=epoch)
        self._store.append_batch(batch)
        self._images.wrote(
            delta,
            start=start,
            end=self._store.end_offset,
            epoch=epoch,
            timestamp=now,
            size=len(batch),
            waiter=waiter,
        )

    def _wrote_control(self, timestamp: int, size: int) -> None:
        """The voters changed: the newest image must include that record's offset."""
        if self._active_epoch is not None and self._active_epoch == self._raft.epoch:
            self._images.wrote(
                self._images.draft(()),
                start=Offset(self.newest.offset + 1),
                end=self._store.end_offset,
                epoch=self._active_epoch,
                timestamp=timestamp,
                size=size,
            )

    # Decisions of the quorum; see ``raft.driver.RaftListener``.

    def committed(self, high_watermark: Offset) -> None:
        self._store.committed(high_watermark)
        self._publisher.committed(high_watermark)

    def became_leader(self, epoch: LeaderEpoch, start_offset: Offset) -> None:
        log.info("leads the metadata quorum", node=self.node_id, epoch=epoch)
        self.elections_won += 1
        self._leads_from = epoch, start_offset

    def lost_leadership(self, epoch: LeaderEpoch) -> None:
        log.info("no longer leads the metadata quorum", node=self.node_id, epoch=epoch)
        self._leads_from = None
        was_active, self._active_epoch = self._active_epoch is not None, None
        error = KafkaError(ErrorCode.NOT_CONTROLLER, "This node lost the metadata quorum.")
        self._publisher.forget_written(error)
        self._publisher.wake()
        if was_active:
            for callback in self._leadership:
                callback(False, epoch)

    def follows(self, leader: NodeId | None, epoch: LeaderEpoch) -> None:
        if leader is not None:
            self.leader_changes += 1
        if leader not in (None, self.node_id):
            log.info("follows the metadata quorum", node=self.node_id, leader=leader, epoch=epoch)

    def leader_committed(self, high_watermark: Offset) -> None:
        if self._publisher.waiting.is_behind:
            self._leader_committed = max(self._leader_committed or Offset(0), high_watermark)
            self._publisher.wake()

    def snapshot_installed(self, snapshot: SnapshotId) -> None:
        self._publisher.committed(snapshot.offset)

    def _replayed(self) -> None:
        self._activate_if_due()
        known, waiting = self._leader_committed, self._publisher.waiting
        is_caught_up = (
            known is not None
            and self._images.next_offset >= known
            # Before a leader commits an entry of its own, it reports what its disk remembered,
            # which may be an old snapshot: after a restart of all nodes, records are committed that
            # no node knows to be committed (KIP-595). A node that took such an image for the newest
            # would remove the logs of newer topics.
            and self._store.holds_committed(self._raft.epoch, known)
            # In a new cluster nothing is committed at first.
            and METADATA_VERSION_FEATURE in self.current.features
        )
        if waiting.is_behind and (self.is_active or is_caught_up):
            waiting.caught_up()

    def _activate_if_due(self) -> None:
        """When our leader change record is committed and replayed, everything before it is too."""
        if self._leads_from is None or self._active_epoch is not None or not self._raft.is_leader:
            return
        epoch, start = self._leads_from
        if epoch != self._raft.epoch or self._images.next_offset <= start:
            return
        try:
            self._write_first(epoch)
        except OSError as error:
            log.warning("no disk space to lead the metadata quorum", error=str(error))
            self._publisher.forget_written(error)
            self._runner.post(Resign())
            return
        self._active_epoch = epoch
        self._runner.log_changed()
        for callback in self._leadership:
            callback(True, epoch)

    def _write_first(self, epoch: LeaderEpoch) -> None:
        images, end = self._images, self._store.end_offset
        if images.is_in_transaction:
            # Its writer is gone and cannot end it.
            self._write([AbortTransactionRecord(reason="the leader that began it is gone")])
        elif images.next_offset < end:
            # Control records after the leader change record that are not committed yet.
            images.wrote(
                images.draft(()),
                start=images.next_offset,
                end=end,
                epoch=epoch,
                timestamp=self._clock.now_ms(),
                size=0,
            )
        if METADATA_VERSION_FEATURE not in images.newest.features:
            self._write(first_records())
