"""The state of a leader for one leader epoch: followers, ISR, and a pending change of the ISR.

The leader proposes a change (AlterPartition) and the controller commits it. Until the outcome is
known, the leader uses the *maximal* ISR: every replica that is in the ISR under either outcome.
So every replica that could be elected holds all acknowledged records.

    settled ──propose──> pending ──committed, or a newer image──> settled, with the new ISR
                            └──controller: not applied──> settled, with the old ISR
                            └──any other error──> pending, until an image arrives (KIP-497)

The state ends with the epoch: followers report their positions to one leader only.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from riverrun.metadata.image import DIRECTORY_LOST, LeaderRecoveryState, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset
from riverrun.replication.follower_progress import FollowerProgress
from riverrun.replication.isr import (
    NEVER,
    holds_acknowledged_records,
    is_nearly_caught_up,
    next_lag_window,
    replicas_to_remove,
)
from riverrun.replication.peers import Peers

REFUSAL_PAUSE_SECONDS = 0.2
"""Pause after a rejection: our image may lag and would lead to the same proposal again."""
RETRY_SECONDS = 0.1
IMAGE_SECONDS = 5.0
"""Sending a proposal again is always safe, because it is based on one partition epoch."""
NOT_APPLIED = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""Our epochs are current, and the controller changed nothing."""
AWAIT_IMAGE = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""The partition has changed. An image that shows the change will arrive."""


class IsrProposal(Struct, frozen=True, kw_only=True, eq=False):
    """A pending change of the ISR. Compared by identity, because each is sent separately."""

    isr: tuple[NodeId, ...]
    leader_epoch: LeaderEpoch
    partition_epoch: int
    """The epoch that the proposal is based on."""
    broker_epochs: dict[NodeId, int]


class IsrVerdict(Struct, frozen=True, kw_only=True):
    """The controller's response to a proposal."""

    error: ErrorCode
    isr: tuple[NodeId, ...] = ()
    leader_epoch: LeaderEpoch = NO_EPOCH
    partition_epoch: int = -1


class LeaderState:
    """One epoch of leadership of one partition. Offsets of the leader's log are arguments."""

    __slots__ = (
        "_adding",
        "_lost",
        "_node_id",
        "_not_before",
        "_peers",
        "_quiet_brokers",
        "_quiet_end",
        "_replicas",
        "epoch",
        "epoch_start",
        "followers",
        "in_sync",
        "is_recovering",
        "isr",
        "out_of_sync",
        "partition_epoch",
        "pending",
        "unverified",
    )

    def __init__(
        self, image: PartitionImage, node_id: NodeId, peers: Peers, epoch_start: Offset
    ) -> None:
        self.epoch = image.leader_epoch
        self.epoch_start = epoch_start
        """A replica that joins the ISR must hold all records below this offset."""
        self.followers: dict[NodeId, FollowerProgress] = {}
        self.isr: tuple[NodeId, ...] = ()
        """The committed ISR; the controller's response may be newer than the image."""
        self._replicas: tuple[NodeId, ...] = ()
        self.partition_epoch = -1
        self.pending: IsrProposal | None = None
        self.in_sync: tuple[FollowerProgress, ...] = ()
        """Followers in the maximal ISR: records that all of them hold may be committed."""
        self.out_of_sync: tuple[FollowerProgress, ...] = ()
        self._node_id = node_id
        self._peers = peers
        self._not_before = NEVER
        self._quiet_end = -1
        self._quiet_brokers = peers.brokers
        self.is_recovering = False
        self._adding: tuple[NodeId, ...] = ()
        self.unverified: tuple[FollowerProgress, ...] = ()
        """New replicas of a reassignment that could join if their content was verified."""
        self.apply(image)

    def apply(self, image: PartitionImage) -> None:
        """Apply a newer image of the same leader epoch. It settles an older proposal."""
        self.end_quiet()
        self._replicas, self._adding = image.replicas, image.adding
        # A replica that its broker found damaged will be truncated, whatever its position.
        self._lost = tuple(
            node
            for node, place in zip(image.replicas, image.directories, strict=False)
            if place == DIRECTORY_LOST
        )
        self.is_recovering = image.leader_recovery_state is LeaderRecoveryState.RECOVERING
        now = self._peers.now()
        for node in image.replicas:
            if node != self._node_id and node not in self.followers:
                # Followers in the ISR must first connect to us: their time limit starts now.
                self.followers[node] = FollowerProgress(node, now if node in image.isr else NEVER)
        for node in [node for node in self.followers if node not in image.replicas]:
            del self.followers[node]
        self._commit(image.isr, image.partition_epoch)

    def _commit(self, isr: tuple[NodeId, ...], partition_epoch: int) -> None:
        if self.isr and isr != self.isr:
            self._peers.expands.value += sum(1 for node in isr if node not in self.isr)
            self._peers.shrinks.value += sum(1 for node in self.isr if node not in isr)
        self.isr, self.partition_epoch = isr, partition_epoch
        if self.pending is not None and self.pending.partition_epoch < partition_epoch:
            self.pending = None
        self._split_followers()

    def _split_followers(self) -> None:
        maximal = self.maximal_isr
        followers = self.followers.values()
        self.in_sync = tuple(follower for follower in followers if follower.node in maximal)
        self.out_of_sync = tuple(follower for follower in followers if follower.node not in maximal)

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        if self.pending is None:
            return self.isr
        return self.isr + tuple(node for node in self.pending.isr if node not in self.isr)

    def replicated_offset(self, held: int, high_watermark: int) -> int:
        """The offset up to which the maximal ISR holds the log; the leader itself holds ``held``.

        A follower that has nearly caught up counts as well. Otherwise the high watermark would
        always run ahead of it, and it could never join. One that must be verified first cannot
        join yet, which may take minutes.
        """
        for follower in self.in_sync:
            held = min(held, follower.end_offset)
        if held > high_watermark:
            for follower in self.out_of_sync:
                if (
                    follower.end_offset < held
                    and self._is_nearly_caught_up(follower, held)
                    and not self._must_be_verified(follower)
                ):
                    held = max(follower.end_offset, high_watermark)
        return held

    def waits_for(self, node: NodeId, high_watermark: int) -> bool:
        """Whether the high watermark waits for a follower, now or after the next append."""
        follower = self.followers.get(node)
        return node in self.maximal_isr or (
            follower is not None and self._is_nearly_caught_up(follower, high_watermark)
        )

    def grown(self, image: PartitionImage) -> PartitionImage:
        """The image without its reassignment, if that only adds replicas and all are in sync.

        The controller ended it with this ISR. It now counts the new replicas for the minimum, and
        keeps replicas eligible because of that. So we must not commit with fewer until the next
        image arrives. If replicas leave, the leader epoch is raised, and only an image ends it.
        """
        if image.removing or not all(node in self.isr for node in image.adding):
            return image
        return replace(image, adding=())

    def _is_nearly_caught_up(self, follower: FollowerProgress, leader_end: int) -> bool:
        peers = self._peers
        return (
            follower.end_offset >= self.epoch_start
            and follower.node not in self._lost
            and is_nearly_caught_up(
                peers.limits,
                leader_end=leader_end,
                end_offset=follower.end_offset,
                caught_up_at=follower.caught_up_at,
                now=peers.now(),
            )
            and peers.may_join(follower.node, follower.broker_epoch)
        )

    def propose_joins(self, leader_end: int, high_watermark: int) -> None:
        """Propose the replicas that may join. Only one proposal is pending at a time."""
        self.unverified = ()
        if self.pending is not None or not self.out_of_sync or self._peers.now() < self._not_before:
            return
        ready = [
            follower
            for follower in self.out_of_sync
            if holds_acknowledged_records(
                end_offset=follower.end_offset,
                high_watermark=high_watermark,
                epoch_start=self.epoch_start,
            )
            and self._is_nearly_caught_up(follower, leader_end)
        ]
        self.unverified = tuple(one for one in ready if self._must_be_verified(one))
        joining = [one.node for one in ready if one not in self.unverified]
        if joining:
            wanted = (*self.isr, *joining)
            self._propose(tuple(node for node in self._replicas if node in wanted))

    def _must_be_verified(self, follower: FollowerProgress) -> bool:
        """A new replica of a reassignment joins after its content was compared with ours."""
        return (
            follower.node in self._adding
            and not follower.is_verified
            and self._peers.is_verification_required
        )

    def is_quiet(self, leader_end: int) -> bool:
        """Whether the last check found nothing to do, and nothing has changed since."""
        return self._quiet_end == leader_end and self._quiet_brokers is self._peers.brokers

    def end_quiet(self) -> None:
        """Something changed: account for the checks that were left out.

        A quiet follower was caught up at every check, as far as it had fetched by then.
        """
        if self._quiet_end >= 0:
            for follower in self.followers.values():
                follower.note_contact(self._quiet_end, self._peers.checked_at)
            self._quiet_end = -1

    def _is_settled(self, leader_end: int) -> bool:
        """Whether all replicas are in sync and hold the whole log, except those of dead brokers.

        They have to fetch before they can join, or their brokers change.
        """
        if self.pending is not None or self.is_recovering:
            return False
        if any(self._peers.is_alive(follower.node) for follower in self.out_of_sync):
            return False
        return all(f.end_offset >= leader_end and f.lag is None for f in self.in_sync)

    def propose_changes(self, leader_end: int, high_watermark: int, min_in_sync: int) -> None:
        """Called periodically: propose the replicas that must leave, else those that may join."""
        self.end_quiet()
        peers = self._peers
        now, limits = peers.now(), peers.limits
        self.unverified = ()
        for follower in self.followers.values():
            follower.note_contact(leader_end)
            messages = leader_end - follower.end_offset
            if follower.lag is not None or messages > limits.lag_messages:
                follower.lag = next_lag_window(limits, follower.lag, messages=messages, now=now)
        if self._is_settled(leader_end):
            self._quiet_end, self._quiet_brokers = leader_end, peers.brokers
            return
        if self.pending is not None or now < self._not_before:
            return
        if self.is_recovering:
            # After an unclean election: this replica is the new history. Report it (KIP-704).
            self._propose(self.isr)
            return
        removed = replicas_to_remove(
            limits,
            [follower.status() for follower in self.in_sync if follower.end_offset < leader_end],
            leader_end=leader_end,
            isr_size=len(self.isr),
            min_in_sync=min_in_sync,
            now=now,
        )
        if removed:
            self._propose(tuple(node for node in self.isr if node not in removed))
        else:
            self.propose_joins(leader_end, high_watermark)

    def _propose(self, isr: tuple[NodeId, ...]) -> None:
        assert self._node_id in isr, f"a leader proposes {isr} without itself, {self._node_id}"
        self.end_quiet()
        epochs: dict[NodeId, int] = {}
        for node in isr:
            follower = self.followers.get(node)
            known = -1 if follower is None else follower.broker_epoch
            epochs[node] = known if known >= 0 else self._peers.epoch_of(node)
        self.pending = IsrProposal(
            isr=isr,
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            broker_epochs=epochs,
        )
        self._split_followers()

    def apply_verdict(self, proposal: IsrProposal, verdict: IsrVerdict) -> float | None:
        """Returns the delay in seconds after which the proposal must be sent again, or None."""
        if self.pending is not proposal:
            return None  # An image has settled it.
        if verdict.error is ErrorCode.NONE:
            if verdict.leader_epoch != self.epoch:
                # The change ended a reassignment and began our next epoch, with the image.
                return IMAGE_SECONDS
            self.is_recovering = False
            if any(node not in verdict.isr for node in self.isr):
                # The controller may have a higher min.insync.replicas than our image, and keep the
                # removed replica eligible because of it. If we committed with the lower one, that
                # replica could be elected without the records. The image that has this change has
                # every earlier setting too.
                return IMAGE_SECONDS
            if verdict.partition_epoch > proposal.partition_epoch:
                self._commit(verdict.isr, verdict.partition_epoch)
            else:
                # The ISR already was as proposed.
                self.pending = None
                self._split_followers()
            return None
        self._peers.rejected.value += 1
        if verdict.error in NOT_APPLIED:
            self.pending = None
            self._not_before = self._peers.now() + REFUSAL_PAUSE_SECONDS
            self._split_followers()
            return None
        return IMAGE_SECONDS if verdict.error in AWAIT_IMAGE else RETRY_SECONDS
