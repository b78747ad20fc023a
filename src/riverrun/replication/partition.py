"""One replica of a partition: its role, its high watermark, and the requests that wait for it.

The leader appends. Records that every in-sync replica holds are committed: the high watermark is
behind the last of them. Producers with acks=all and consumers at the end of the log register
callbacks here; whatever moves the high watermark calls them, so waiting costs no CPU time.
``storage`` owns files and formats, ``server`` owns sockets, ``leader_state.py`` owns the ISR.

    append, a flush, or a follower's fetch ──> advance() ──> high watermark ──> waiters
    append ──> sessions of followers, which fetch the records
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from riverrun.metadata.image import NO_LEADER, PartitionImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicPartition
from riverrun.model.invariants import InvariantViolation
from riverrun.model.names import INTERNAL_TOPICS
from riverrun.replication.fetch_watches import FetchWait, FollowerWatch
from riverrun.replication.follower_progress import Contact, FollowerProgress
from riverrun.replication.isr import not_enough_replicas
from riverrun.replication.leader_state import IsrProposal, IsrVerdict, LeaderState
from riverrun.replication.offset_waiters import OffsetWaiters, WaiterCallback
from riverrun.replication.peers import Peers
from riverrun.replication.readable_bytes import ReadableBytes
from riverrun.replication.refused_producers import RefusedProducers
from riverrun.replication.verification_attempts import VerificationAttempts
from riverrun.storage.log import Appended, AppendOrigin, Log

_NO_IMAGE: Final = PartitionImage(
    replicas=(),
    isr=(),
    leader=NO_LEADER,
    leader_epoch=NO_EPOCH,
    partition_epoch=-1,
    directories=(),
)
_NO_FOLLOWERS: Final[Mapping[NodeId, FollowerProgress]] = {}


class Partition:
    """A replica of a partition on this node."""

    __slots__ = (
        "_commit_waiters",
        "_deletion_waiters",
        "_fetches",
        "_flush_waiters",
        "_leader_state",
        "_node_id",
        "_peers",
        "_readable",
        "_refused_producers",
        "_request_flush",
        "_watches",
        "attempts",
        "image",
        "is_closed",
        "is_internal",
        "leader",
        "leader_epoch",
        "log",
        "name",
        "topic_id",
    )

    def __init__(
        self,
        log: Log,
        topic_id: UUID,
        node_id: NodeId,
        request_flush: Callable[[Partition], None],
        peers: Peers | None = None,
    ) -> None:
        self.log = log
        self.name: TopicPartition = log.partition
        self.topic_id = topic_id
        self.is_internal = self.name.topic in INTERNAL_TOPICS
        self.is_closed = False
        """The replica is deleted, or its disk has failed. It never leads or follows again."""
        self.leader = NO_LEADER
        self.leader_epoch = LeaderEpoch(-1)
        self._node_id = node_id
        self._request_flush = request_flush
        self._peers = peers or Peers()
        self.image = _NO_IMAGE
        self._leader_state: LeaderState | None = None
        """Owns the ISR while this node leads; otherwise the ISR is that of the image."""
        self._commit_waiters = OffsetWaiters()
        self._flush_waiters = OffsetWaiters()
        self._deletion_waiters = OffsetWaiters()
        self._refused_producers = RefusedProducers()
        self._fetches: dict[FetchWait, None] = {}
        self._watches: tuple[FollowerWatch, ...] = ()
        self._readable = ReadableBytes()
        self.attempts = VerificationAttempts()

    # Role and ISR

    @property
    def is_leader(self) -> bool:
        return self.leader == self._node_id

    @property
    def replicas(self) -> tuple[NodeId, ...]:
        return self.image.replicas

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """The newest committed ISR that this node has seen."""
        return self.image.isr if self._leader_state is None else self._leader_state.isr

    @property
    def partition_epoch(self) -> int:
        state = self._leader_state
        return self.image.partition_epoch if state is None else state.partition_epoch

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        return self.image.isr if self._leader_state is None else self._leader_state.maximal_isr

    def waits_for(self, node: NodeId) -> bool:
        """Whether the high watermark waits for a replica, as far as this node knows."""
        if self._leader_state is None:
            return node in self.image.isr
        return self._leader_state.waits_for(node, self.log.high_watermark)

    @property
    def followers(self) -> Mapping[NodeId, FollowerProgress]:
        """The followers of a partition that this node leads; otherwise empty."""
        return _NO_FOLLOWERS if self._leader_state is None else self._leader_state.followers

    @property
    def epoch_start(self) -> Offset | None:
        """The log end offset at which this node became leader; None if it does not lead."""
        return None if self._leader_state is None else self._leader_state.epoch_start

    def apply(self, image: PartitionImage) -> None:
        """Take the role that the metadata assigns to this node."""
        if image.partition_epoch < self.partition_epoch or self.is_closed:
            return
        self.image = image
        if image.leader_epoch != self.leader_epoch or image.leader != self.leader:
            assert image.leader_epoch >= self.leader_epoch, (
                f"{self.name}: epoch went back from {self.leader_epoch} to {image.leader_epoch}"
            )
            was_leader = self.is_leader
            # Two consecutive epochs of one leader: nothing was truncated, so acknowledgements
            # can still be sent. A reassignment that ends raises the epoch like this.
            is_next = image.leader_epoch == self.leader_epoch + 1
            self.leader, self.leader_epoch = image.leader, image.leader_epoch
            self._leader_state = None
            if not (was_leader and self.is_leader and is_next):
                self.attempts.abandon()
                self._fail_waiters(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            # Also on a follower: waiting consumers must find the new leader.
            self._interrupt_fetches()
            if not (was_leader and self.is_leader):
                self._readable.clear()
            if self.leader not in (self._node_id, NO_LEADER):
                self._refused_producers.clear()  # The producers resume at the other leader.
            if self.is_leader:
                # Positions of followers belong to one leader epoch, even if the leader stays.
                self.log.begin_epoch(self.leader_epoch)
                self._leader_state = LeaderState(
                    image, self._node_id, self._peers, self.log.end_offset
                )
        elif self._leader_state is not None:
            self._leader_state.apply(image)
        if self.is_leader:
            self.advance()
            self.check_isr()
            # Replicas that they wait for may have left.
            self._deletion_waiters.reached(self.low_watermark)

    def close(self, code: ErrorCode) -> None:
        """The replica is removed: fail all waiters with this code."""
        self.is_closed = True
        self.leader = NO_LEADER
        self._leader_state = None
        self._fail_waiters(code)
        self._interrupt_fetches()

    def _fail_waiters(self, code: ErrorCode) -> None:
        for waiters in (self._commit_waiters, self._flush_waiters, self._deletion_waiters):
            waiters.fail_all(code)

    def _interrupt_fetches(self) -> None:
        for fetch in list(self._fetches):
            fetch.interrupted()
        self._notify_followers(is_urgent=True)

    def check_leader(self, epoch: int) -> None:
        """Reject a request if this node does not lead, or leads in another epoch (KIP-320)."""
        if epoch not in (NO_EPOCH, self.leader_epoch):
            self.check_epoch(epoch)
        if self.leader != self._node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, epoch: int) -> None:
        """Reject a request that carries another leader epoch, on leaders and followers."""
        if epoch not in (NO_EPOCH, self.leader_epoch):
            if epoch < self.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
            raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Appending

    def min_in_sync(self) -> int:
        """The effective minimum of in-sync replicas. A topic with fewer replicas than
        min.insync.replicas would otherwise never be writable.
        """
        return self.image.min_in_sync(self.log.settings.min_insync_replicas)

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Appended:
        """Append as leader. A caller that needs a commit then registers with ``when_committed``."""
        leader_state = self._leader_state
        if leader_state is None:
            self._refused_producers.add(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(leader_state.isr) < self.min_in_sync():
            self._refused_producers.add(batch, ErrorCode.NOT_ENOUGH_REPLICAS)
            raise not_enough_replicas(self.name, len(self.isr), self.min_in_sync())
        log = self.log
        before = log.end_offset
        try:
            appended = log.append_as_leader(
                batch, leader_epoch=self.leader_epoch, now_ms=now_ms, origin=origin
            )
        except (KafkaError, OSError) as error:
            self._refused_producers.append_failed(batch, error, log.producers)
            raise
        if self._refused_producers:
            self._refused_producers.remove(batch)
        if log.end_offset != before:
            self.appended(len(batch))
        return appended

    def appended(self, size_bytes: int) -> None:
        """Records were appended as leader."""
        self._readable.add(self.log.end_offset, size_bytes)
        if self._watches:
            self._notify_followers(is_urgent=True)
        try:
            self.advance()
        except AssertionError as error:
            raise InvariantViolation(str(error)) from error

    def advance(self) -> None:
        """Move the high watermark to the offset that all in-sync replicas hold. Call waiters."""
        leader_state = self._leader_state
        if leader_state is None:
            return  # A flush that began under our leadership may end after it.
        log = self.log
        held = log.end_offset
        # With flush.before.ack the leader counts only its own flushed records. A power failure
        # must not take back records that a producer or a consumer has seen.
        if log.settings.flush_before_ack or self._flush_waiters.queue:
            held = self._flushed_offset()
        if leader_state.followers:
            held = self._replicated_offset(leader_state, held)
        if held <= log.high_watermark:
            return
        log.advance_high_watermark(held)
        if self._commit_waiters.queue:
            self._commit_waiters.reached(held)
        self._note_readable(held)
        if self._watches:
            self._notify_followers(is_urgent=self._peers.are_followers_read)

    def _note_readable(self, high_watermark: Offset) -> None:
        """The high watermark has moved: wake fetches that have enough bytes now."""
        log, readable = self.log, self._readable
        is_stable = log.producers.first_unstable is None
        readable.advance(high_watermark, high_watermark if is_stable else log.last_stable_offset)
        if self._fetches:
            news = readable.news
            for fetch in list(self._fetches):
                fetch.progressed(self, news)

    def _replicated_offset(self, leader_state: LeaderState, held: Offset) -> Offset:
        """The offset below which records may be committed, at most ``held``."""
        high_watermark = self.log.high_watermark
        held = Offset(leader_state.replicated_offset(held, high_watermark))
        if held > high_watermark and len(leader_state.isr) < self.min_in_sync():
            # Fewer replicas than the minimum hold the records. They must not become readable
            # and must not be acknowledged (KIP-966).
            self._commit_waiters.refuse(held, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            return high_watermark
        return held

    def _flushed_offset(self) -> Offset:
        """The part of our own log that counts. Requests a flush of the rest."""
        log = self.log
        flushed = log.flushed_offset
        if flushed < log.end_offset:
            self._request_flush(self)
        self._flush_waiters.reached(flushed)
        return flushed if log.settings.flush_before_ack else log.end_offset

    # Followers of this leader

    def follower(self, node: NodeId) -> FollowerProgress:
        """The follower with this id; an error if the node is not a replica."""
        leader_state = self._leader_state
        found = None if leader_state is None else leader_state.followers.get(node)
        if found is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return found

    def follower_fetched(
        self,
        follower: FollowerProgress,
        offset: int,
        start_offset: int,
        contact: Contact,
    ) -> None:
        """Count a fetch. It comes from the registered incarnation of the follower, whose log
        agrees with ours up to ``offset``.
        """
        leader_state = self._leader_state
        assert leader_state is not None, f"{self.name}: a follower's fetch counted without leading"
        log = self.log
        assert offset <= log.end_offset, f"{self.name}: {offset} is above {log.end_offset}"
        has_moved = offset != follower.end_offset
        is_trimmed = start_offset != follower.start_offset
        follower.contact, follower.broker_epoch = contact, contact.broker_epoch
        follower.fetched(offset, start_offset, leader_end=log.end_offset, now=contact.fetched_at)
        if has_moved:
            leader_state.end_quiet()
            self.advance()
        if leader_state.out_of_sync and leader_state.pending is None:
            leader_state.propose_joins(log.end_offset, log.high_watermark)
            self._send_proposal(leader_state)
        if is_trimmed and self._deletion_waiters.queue:
            self._deletion_waiters.reached(self.low_watermark)

    def follower_served(self, follower: FollowerProgress) -> None:
        """A response with records is about to be sent to a follower."""
        if follower.served(leader_end=self.log.end_offset, now=self._peers.now()):
            # The follower may have a full disk, or our copy was damaged after it was written.
            self.log.is_suspect = True

    def watch_as_follower(self, watch: FollowerWatch) -> None:
        others = tuple(known for known in self._watches if known.node != watch.node)
        for known in self._watches:
            if known.node == watch.node and known is not watch:
                known.replaced()
        self._watches = (*others, watch)

    def unwatch_as_follower(self, watch: FollowerWatch) -> None:
        self._watches = tuple(known for known in self._watches if known is not watch)

    def _notify_followers(self, *, is_urgent: bool) -> None:
        for watch in self._watches:
            watch.changed(is_urgent=is_urgent)

    # Changes of the ISR

    @property
    def proposal(self) -> IsrProposal | None:
        return None if self._leader_state is None else self._leader_state.pending

    @property
    def is_quiet(self) -> bool:
        """Whether ``check_isr`` would find nothing new."""
        state, waiters = self._leader_state, self._deletion_waiters.queue
        return state is not None and state.is_quiet(self.log.end_offset) and not waiters

    def check_isr(self) -> None:
        """Propose a change of the ISR if one is due. Called periodically and with each image."""
        leader_state = self._leader_state
        if leader_state is None or not (leader_state.followers or leader_state.is_recovering):
            return
        leader_state.propose_changes(
            self.log.end_offset, self.log.high_watermark, self.min_in_sync()
        )
        self._send_proposal(leader_state)
        if leader_state.out_of_sync:
            # A follower that held back the high watermark may have fallen too far behind.
            self.advance()
        if self._deletion_waiters.queue:
            self._deletion_waiters.reached(self.low_watermark)

    def _send_proposal(self, leader_state: LeaderState) -> None:
        if leader_state.pending is not None:
            self._peers.propose(self)
        self._peers.verify(self, leader_state.unverified)

    def apply_verdict(self, proposal: IsrProposal, verdict: IsrVerdict) -> float | None:
        """Apply the controller's response. Returns the delay in seconds after which the proposal
        must be sent again, or None.
        """
        leader_state = self._leader_state
        if leader_state is None:
            return None
        retry_seconds = leader_state.apply_verdict(proposal, verdict)
        if retry_seconds is None:
            self.image = leader_state.grown(self.image)
            # Removed replicas no longer hold back the high watermark, and others may join.
            self.advance()
            leader_state.propose_joins(self.log.end_offset, self.log.high_watermark)
            self._send_proposal(leader_state)
        return retry_seconds

    def credit_stall(self, seconds: float) -> None:
        """Extend the followers' deadlines by a stall of this node."""
        if self._leader_state is not None:
            self._leader_state.end_quiet()
        for follower in self.followers.values():
            follower.credit_stall(seconds)

    # Following

    def follower_appended(self, size_bytes: int, high_watermark: int) -> None:
        """Records were appended as a follower; ``high_watermark`` is the leader's."""
        log = self.log
        if size_bytes:
            self._readable.truncate(log.end_offset - 1)
            self._readable.add(log.end_offset, size_bytes)
        held = min(Offset(high_watermark), log.end_offset)
        if held <= log.high_watermark:
            return
        log.advance_high_watermark(held)
        self._note_readable(held)

    # Waiters

    def when_committed(
        self, end: Offset, callback: WaiterCallback, *, waits_for_isr: bool = False
    ) -> None:
        """Call back once the high watermark reaches ``end``, or with the error that prevents it.

        A duplicate waits like its original. With ``waits_for_isr`` it is not refused while the
        ISR is below its minimum.
        """
        assert end > self.log.high_watermark, f"{end} is committed already"
        self._commit_waiters.add(end, callback, waits_for_isr=waits_for_isr)

    def when_flushed(self, end: Offset, callback: WaiterCallback) -> None:
        """Call back once our own log is durable up to ``end``: acks=1 with flush.before.ack."""
        assert end > self.log.flushed_offset, f"{end} is durable already"
        self._flush_waiters.add(end, callback)
        self._request_flush(self)

    def cancel_produce(self, callback: WaiterCallback) -> None:
        """The produce request timed out."""
        for waiters in (self._commit_waiters, self._flush_waiters):
            if waiters.queue:
                waiters.cancel(callback)

    def watch(self, fetch: FetchWait) -> None:
        self._fetches[fetch] = None

    def unwatch(self, fetch: FetchWait) -> None:
        self._fetches.pop(fetch, None)

    @property
    def waiting_produces(self) -> int:
        return len(self._commit_waiters) + len(self._flush_waiters)

    @property
    def waiting_fetches(self) -> int:
        return len(self._fetches)

    # Deletion of records

    @property
    def low_watermark(self) -> Offset:
        """The lowest log start offset of all replicas on live brokers."""
        starts = [
            follower.start_offset
            for follower in self.followers.values()
            if self._peers.is_alive(follower.node)
        ]
        return min([self.log.start_offset, *starts])

    def start_moved(self) -> None:
        """The log start offset grew: send it to the followers."""
        self._notify_followers(is_urgent=True)

    def when_deleted(self, offset: Offset, callback: WaiterCallback) -> None:
        """Call back once no live replica has records below ``offset`` (KIP-107)."""
        self._deletion_waiters.add(offset, callback)
        self._deletion_waiters.reached(self.low_watermark)

    def cancel_deletion(self, callback: WaiterCallback) -> None:
        self._deletion_waiters.cancel(callback)
