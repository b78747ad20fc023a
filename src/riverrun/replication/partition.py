"""One partition on this node: who leads it, what is committed, and who waits for that.

The leader appends, and what every in-sync replica holds is committed: the high watermark. Producers
with acks=all and consumers at the end of the log wait here; waiting costs nothing, for they are
called by whatever moves the high watermark. Disk and formats are left to ``storage``, sockets to
``server``, the ISR to ``leading.py``.

    append, a sync, or a follower's fetch ──> advance() ──> high watermark ──> who waits
    append ──> followers' sessions, which fetch it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from riverrun.metadata.image import NO_LEADER, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicPartition
from riverrun.model.invariants import InvariantViolation
from riverrun.replication.leading import Leading, Proposal, Verdict
from riverrun.replication.peers import Peers
from riverrun.replication.progress import Contact, Follower
from riverrun.replication.refusals import Refusals
from riverrun.replication.waiting import Told, Waits
from riverrun.storage.log import Appended, Log, Origin

INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")


class FetchWait(Protocol):
    """A fetch that waits for records."""

    def progressed(self, partition: Partition, visible_bytes: int) -> None:
        """So many bytes more can be read."""
        ...

    def interrupted(self) -> None:
        """Something changed that the client must hear of at once."""
        ...


class FollowerWatch(Protocol):
    """A follower's session, as far as it concerns one partition."""

    node: NodeId

    def replaced(self) -> None:
        """The follower fetches this partition in another session now."""
        ...

    def changed(self, *, is_urgent: bool) -> None:
        """There is something to tell; at once if it is urgent."""
        ...


class Partition:
    """A replica of a partition, seen from the node that holds it."""

    __slots__ = (
        "_appended_bytes",
        "_deletions",
        "_fetches",
        "_invisible",
        "_leading",
        "_node_id",
        "_peers",
        "_produces",
        "_refusals",
        "_request_sync",
        "_size_seen",
        "_syncs",
        "_visible_bytes",
        "_watches",
        "followers",
        "is_closed",
        "is_internal",
        "isr",
        "leader",
        "leader_epoch",
        "log",
        "name",
        "partition_epoch",
        "replicas",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        topic_id: UUID,
        node_id: NodeId,
        request_sync: Callable[[Partition], None],
        peers: Peers | None = None,
    ) -> None:
        self.log = log
        self.name: TopicPartition = log.partition
        self.topic_id = topic_id
        self.is_internal = self.name.topic in INTERNAL_TOPICS
        self.is_closed = False
        """Deleted, or its disk has failed: this object will neither lead nor follow again."""
        self.leader = NO_LEADER
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = -1
        self.replicas: tuple[NodeId, ...] = ()
        self.isr: tuple[NodeId, ...] = ()
        """As committed, as far as we know."""
        self._node_id = node_id
        self._request_sync = request_sync
        self._peers = peers or Peers()
        self._leading: Leading | None = None
        self.followers: dict[NodeId, Follower] = {}
        """Those that we lead; nobody where we do not."""
        self._produces = Waits()
        self._refusals = Refusals()
        self._syncs = Waits()
        self._deletions = Waits()
        self._fetches: dict[FetchWait, None] = {}
        self._watches: tuple[FollowerWatch, ...] = ()
        # Bytes appended in all, and for what is appended but not committed the sum after each
        # batch: so a fetch that waits for many bytes learns how many became readable, without a
        # look at the log.
        self._appended_bytes = 0
        self._visible_bytes = 0
        self._size_seen = 0
        self._invisible: deque[tuple[Offset, int]] = deque()

    @property
    def is_leader(self) -> bool:
        return self.leader == self._node_id

    # -- Roles ------------------------------------------------------------------------------------

    def apply(self, state: PartitionImage) -> None:
        """Take the role that the metadata gives us."""
        if state.partition_epoch < self.partition_epoch or self.is_closed:
            return
        was_leader = self.is_leader
        self.partition_epoch = state.partition_epoch
        self.replicas, self.isr = state.replicas, state.isr
        if state.leader_epoch != self.leader_epoch or state.leader != self.leader:
            assert state.leader_epoch >= self.leader_epoch, (
                f"{self.name}: epoch went back from {self.leader_epoch} to {state.leader_epoch}"
            )
            self.leader, self.leader_epoch = state.leader, state.leader_epoch
            self._leading, self.followers = None, {}
            # Whoever waited for a follower's high watermark must learn of the new leader, too.
            self._abandon(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if self.is_leader:
                # The same node in a new epoch keeps nothing: what followers told belongs to the old
                # one.
                self.log.begin_epoch(self.leader_epoch)
                self._leading = Leading(state, self._node_id, self._peers, self.log.end_offset)
                self.followers = self._leading.followers
                self._begin_counting(was_leader=was_leader)
        elif self._leading is not None:
            self._leading.take(state)
        if self.is_leader:
            self.advance()
            self.look()

    def _begin_counting(self, *, was_leader: bool) -> None:
        if not was_leader:
            self._invisible.clear()
            self._visible_bytes = self._appended_bytes
            if self.log.end_offset > self.log.high_watermark:
                self._invisible.append((self.log.end_offset, self._appended_bytes + 1))
                self._appended_bytes += 1

    def close(self, why: ErrorCode) -> None:
        """The replica goes away; whoever waits is told."""
        self.is_closed = True
        self.leader = NO_LEADER
        self._leading, self.followers = None, {}
        self._abandon(why)

    def _abandon(self, why: ErrorCode) -> None:
        for waits in (self._produces, self._syncs, self._deletions):
            waits.fail(why)
        for fetch in list(self._fetches):
            fetch.interrupted()
        self._tell_followers(is_urgent=True)

    def check_leader(self, epoch: int) -> None:
        """Refuse a client that speaks to the wrong node or of another epoch (KIP-320)."""
        if epoch not in (NO_EPOCH, self.leader_epoch):
            self.check_epoch(epoch)
        if self.leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, epoch: int) -> None:
        """Refuse a client of another epoch, whoever leads."""
        if epoch not in (NO_EPOCH, self.leader_epoch):
            if epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # -- Appending --------------------------------------------------------------------------------

    def min_in_sync(self) -> int:
        """A topic with fewer replicas than min.insync.replicas would never be writable
        otherwise.
        """
        return min(self.log.settings.min_insync_replicas, len(self.replicas))

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
    ) -> Appended:
        """Append as the leader; the caller then waits by ``when_committed`` if it needs to."""
        if self.leader != self._node_id:
            self._refusals.note(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(self.isr) < self.min_in_sync():
            self._refusals.note(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {len(self.isr)} is insufficient to satisfy "
                f"the min.isr requirement of {self.min_in_sync()} for partition {self.name}",
            )
        log = self.log
        before = log.end_offset
        try:
            appended = log.append_as_leader(
                batch, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin
            )
        except KafkaError as error:
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                reason = self._refusals.reason(batch)
                if reason is not None:
                    raise KafkaError(reason, "What came before it was refused.") from error
            raise
        if self._refusals:
            self._refusals.taken(batch)
        if log.end_offset != before:
            self._appended_bytes += len(batch)
            self._invisible.append((log.end_offset, self._appended_bytes))
            if self._watches:
                self._tell_followers(is_urgent=True)
            try:
                self.advance()
            except AssertionError as error:
                raise InvariantViolation(str(error)) from error
        return appended

    def advance(self) -> None:
        """Move the high watermark to what every in-sync replica holds, and wake who waits for
        it.
        """
        if self._leading is None:
            return  # a sync that we began as the leader may end when another leads
        log = self.log
        held = log.end_offset
        # With flush.before.ack the leader counts what it has synced itself, so that neither a
        # producer nor a reader sees what a power cut could take back.
        if log.settings.flush_before_ack or self._syncs.queue:
            held = self._synced()
        if self.followers:
            held = self._held_by_all(held)
        if held <= log.high_watermark:
            return
        log.advance_high_watermark(held)
        if self._produces.queue:
            self._produces.reached(held)
        invisible = self._invisible
        seen = self._visible_bytes
        while invisible and invisible[0][0] <= held:
            seen = invisible.popleft()[1]
        grown, self._visible_bytes = seen - self._visible_bytes, seen
        if self._fetches:
            for fetch in list(self._fetches):
                fetch.progressed(self, grown)
        if self._watches:
            self._tell_followers(is_urgent=self._peers.are_followers_read)

    def _held_by_all(self, held: Offset) -> Offset:
        """What of that may be committed, for every replica that counts has it."""
        high_watermark, leading = self.log.high_watermark, self._leading
        if leading is None:
            return high_watermark
        held = Offset(leading.held_by_all(held, high_watermark))
        if held > high_watermark and len(self.isr) < self.min_in_sync():
            # Fewer replicas than were asked for hold it: nobody may read it, and who wrote it must
            # not believe that it is safe (KIP-966).
            self._produces.refuse(held, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return high_watermark
        return held

    def _synced(self) -> Offset:
        """What counts of our own log, and a sync for the rest."""
        log = self.log
        synced = log.flushed_offset
        if synced < log.end_offset:
            self._request_sync(self)
        self._syncs.reached(synced)
        return synced if log.settings.flush_before_ack else log.end_offset

    # -- Followers, as their leader sees them -----------------------------------------------------

    @property
    def epoch_start(self) -> Offset | None:
        """Where our epoch began, if we lead."""
        return None if self._leading is None else self._leading.epoch_start

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        return self.isr if self._leading is None else self._leading.maximal_isr

    def follower(self, node: NodeId) -> Follower:
        """The follower of that id; refuses who is no replica, as far as we know."""
        leading = self._leading
        if leading is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = leading.followers.get(node)
        if found is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def follower_fetched(
        self, follower: Follower, offset: int, start_offset: int, contact: Contact
    ) -> None:
        """A fetch that counts: it comes from the registered incarnation, and its history is ours up
        to ``offset``.
        """
        leading = self._leading
        assert leading is not None, f"{self.name}: a follower's fetch counted without leading"
        log = self.log
        assert offset <= log.end_offset, f"{self.name}: {offset} is above {log.end_offset}"
        has_moved = offset != follower.end_offset
        is_trimmed = start_offset != follower.start_offset
        follower.contact, follower.broker_epoch = contact, contact.broker_epoch
        follower.fetched(offset, start_offset, leader_end=log.end_offset, now=contact.fetched_at)
        if has_moved:
            self.advance()
        if leading.outside and leading.pending is None:
            leading.consider_joins(log.end_offset, log.high_watermark)
            self._proposed(leading)
        if is_trimmed and self._deletions.queue:
            self._deletions.reached(self.low_watermark)

    def follower_served(self, follower: Follower) -> None:
        """Records are on their way to a follower."""
        if follower.served(leader_end=self.log.end_offset, now=self._peers.now()):
            # It may have no room, or we send it what has rotted since it was written here.
            self.log.is_suspect = True

    def watch_as_follower(self, watch: FollowerWatch) -> None:
        others = tuple(known for known in self._watches if known.node != watch.node)
        for known in self._watches:
            if known.node == watch.node and known is not watch:
                known.replaced()
        self._watches = (*others, watch)

    def unwatch_as_follower(self, watch: FollowerWatch) -> None:
        self._watches = tuple(known for known in self._watches if known is not watch)

    def _tell_followers(self, *, is_urgent: bool) -> None:
        for watch in self._watches:
            watch.changed(is_urgent=is_urgent)

    # -- The ISR ----------------------------------------------------------------------------------

    @property
    def proposal(self) -> Proposal | None:
        return None if self._leading is None else self._leading.pending

    def look(self) -> None:
        """From time to time, and with each new state: who must leave the ISR, who may join it."""
        leading = self._leading
        if leading is None or (not leading.followers and not leading.is_recovering):
            return
        leading.look(self.log.end_offset, self.log.high_watermark, self.min_in_sync())
        self._proposed(leading)
        if leading.outside:
            # Somebody who held back the high watermark may have fallen too far behind to count.
            self.advance()
        if self._deletions.queue:
            self._deletions.reached(self.low_watermark)

    def _proposed(self, leading: Leading) -> None:
        if leading.pending is not None:
            self._peers.propose(self)

    def judged(self, proposal: Proposal, verdict: Verdict) -> float | None:
        """The controller's answer; gives the seconds after which it must be asked again, if so."""
        leading = self._leading
        if leading is None:
            return None
        again = leading.judged(proposal, verdict)
        if leading.partition_epoch > self.partition_epoch:
            self.partition_epoch, self.isr = leading.partition_epoch, leading.isr
        if again is None:
            # Who left no longer holds back the high watermark, and others may wait to join.
            self.advance()
            leading.consider_joins(self.log.end_offset, self.log.high_watermark)
            self._proposed(leading)
        return again

    def credit(self, seconds: float) -> None:
        """This node stood still for so long; nobody else is to blame."""
        for follower in self.followers.values():
            follower.credit(seconds)

    # -- Following --------------------------------------------------------------------------------

    def follower_appended(self, high_watermark: int) -> None:
        """As a follower we fetched: the leader's high watermark moves ours, within our log."""
        log = self.log
        size = log.size_bytes
        self._appended_bytes += max(size - self._size_seen, 0)
        self._size_seen = size
        held = min(Offset(high_watermark), log.end_offset)
        if held <= log.high_watermark:
            return
        log.advance_high_watermark(held)
        grown, self._visible_bytes = (
            self._appended_bytes - self._visible_bytes,
            self._appended_bytes,
        )
        for fetch in list(self._fetches):
            fetch.progressed(self, grown)

    # -- Waiting ----------------------------------------------------------------------------------

    def when_committed(self, end: Offset, committed: Told, *, is_patient: bool = False) -> None:
        """Call back once the high watermark has reached ``end``, or with the reason why it won't.

        A duplicate waits like its original. Who is patient waits on while too few are in sync.
        """
        assert end > self.log.high_watermark, f"{end} is committed already"
        self._produces.add(end, committed, is_patient=is_patient)

    def when_synced(self, end: Offset, synced: Told) -> None:
        """Call back once our own log is durable up to ``end``: acks=1 with flush.before.ack."""
        assert end > self.log.flushed_offset, f"{end} is durable already"
        self._syncs.add(end, synced)
        self._request_sync(self)

    def forget_produce(self, told: Told) -> None:
        """The producer's time is up."""
        for waits in (self._produces, self._syncs):
            if waits.queue:
                waits.give_up(told)

    def watch(self, fetch: FetchWait) -> None:
        self._fetches[fetch] = None

    def unwatch(self, fetch: FetchWait) -> None:
        self._fetches.pop(fetch, None)

    @property
    def waiting_produces(self) -> int:
        return len(self._produces) + len(self._syncs)

    @property
    def waiting_fetches(self) -> int:
        return len(self._fetches)

    # -- Deleting records -------------------------------------------------------------------------

    @property
    def low_watermark(self) -> Offset:
        """The first offset that some living replica still has."""
        starts = [
            follower.start_offset
            for follower in self.followers.values()
            if self._peers.is_alive(follower.node)
        ]
        return min([self.log.start_offset, *starts])

    def start_moved(self) -> None:
        """Records at the beginning were deleted: followers must hear of it."""
        self._tell_followers(is_urgent=True)

    def when_deleted(self, offset: Offset, deleted: Told) -> None:
        """Call back once no living replica has records below ``offset`` (KIP-107)."""
        self._deletions.add(offset, deleted)
        self._deletions.reached(self.low_watermark)

    def forget_deletion(self, deleted: Told) -> None:
        self._deletions.give_up(deleted)
