"""What a leader keeps for one leader epoch: its followers, the ISR, and a change of it under way.

The leader proposes a change (AlterPartition) and the controller commits it. Until the outcome is
known the leader acts on the *maximal* ISR, everybody who may be in it by either outcome: whoever
might be elected tomorrow holds all that is acknowledged today.

    settled ──propose──> pending ──committed, or a newer image──> settled
                            └──the controller says: not applied──> settled, as it was
                            └──any other refusal──> pending, until an image tells (KIP-497)

At the end of the epoch all of it is forgotten: positions are claims made to one leader.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.metadata.image import DIRECTORY_LOST, LeaderRecoveryState, PartitionImage
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset
from riverrun.replication.isr import (
    NEVER,
    holds_what_was_acknowledged,
    is_within,
    leavers,
    next_window,
)
from riverrun.replication.peers import Peers
from riverrun.replication.progress import Follower

REFUSAL_PAUSE_SECONDS = 0.2
"""After a refusal: our image may lag, and would lead us to the same proposal again."""
RETRY_SECONDS = 0.1
IMAGE_SECONDS = 5.0
"""To send a proposal again is always safe, for it is based on one partition epoch."""
NOT_APPLIED = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
"""By these the controller says that our epochs are right, and that nothing was changed."""
AWAIT_IMAGE = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""By these it says that the partition has changed: an image is on its way that tells how."""


class Proposal(Struct, frozen=True, kw_only=True, eq=False):
    """A change of the ISR that is under way; by identity, for each is sent on its own."""

    isr: tuple[NodeId, ...]
    leader_epoch: LeaderEpoch
    partition_epoch: int
    """The one that it is based on."""
    broker_epochs: dict[NodeId, int]


class Verdict(Struct, frozen=True, kw_only=True):
    """What the controller says of a proposal."""

    error: ErrorCode
    isr: tuple[NodeId, ...] = ()
    leader_epoch: LeaderEpoch = NO_EPOCH
    partition_epoch: int = -1


class Leading:
    """One epoch of leadership over one partition. Offsets of our own log come as arguments."""

    __slots__ = (
        "_lost",
        "_me",
        "_not_before",
        "_peers",
        "epoch",
        "epoch_start",
        "followers",
        "in_sync",
        "is_recovering",
        "isr",
        "outside",
        "partition_epoch",
        "pending",
        "replicas",
    )

    def __init__(
        self, state: PartitionImage, me: NodeId, peers: Peers, epoch_start: Offset
    ) -> None:
        self.epoch = state.leader_epoch
        self.epoch_start = epoch_start
        """Whoever joins the ISR must hold all below it, whatever the high watermark is."""
        self.followers: dict[NodeId, Follower] = {}
        self.isr: tuple[NodeId, ...] = ()
        """As committed."""
        self.replicas: tuple[NodeId, ...] = ()
        self.partition_epoch = -1
        self.pending: Proposal | None = None
        self.in_sync: tuple[Follower, ...] = ()
        """Followers of the maximal ISR: what all of them hold may be committed."""
        self.outside: tuple[Follower, ...] = ()
        self._me = me
        self._peers = peers
        self._not_before = NEVER
        self.is_recovering = False
        self.take(state)

    # -- What the metadata says -------------------------------------------------------------------

    def take(self, state: PartitionImage) -> None:
        """A newer state of the same epoch; it settles a proposal that is older than it."""
        self.replicas = state.replicas
        # A replica that its broker found damaged is about to be cut, whatever we believe it has.
        self._lost = tuple(
            node
            for node, place in zip(state.replicas, state.directories, strict=False)
            if place == DIRECTORY_LOST
        )
        self.is_recovering = state.leader_recovery_state is LeaderRecoveryState.RECOVERING
        now = self._peers.now()
        for node in state.replicas:
            if node != self._me and node not in self.followers:
                # Those in sync get the whole time to come here: they follow a new leader.
                self.followers[node] = Follower(node, now if node in state.isr else NEVER)
        for node in [node for node in self.followers if node not in state.replicas]:
            del self.followers[node]
        self._commit(state.isr, state.partition_epoch)

    def _commit(self, isr: tuple[NodeId, ...], partition_epoch: int) -> None:
        if self.isr and isr != self.isr:
            self._peers.expands.value += sum(1 for node in isr if node not in self.isr)
            self._peers.shrinks.value += sum(1 for node in self.isr if node not in isr)
        self.isr, self.partition_epoch = isr, partition_epoch
        if self.pending is not None and self.pending.partition_epoch < partition_epoch:
            self.pending = None
        self._divide()

    def _divide(self) -> None:
        maximal = self.maximal_isr
        followers = self.followers.values()
        self.in_sync = tuple(follower for follower in followers if follower.node in maximal)
        self.outside = tuple(follower for follower in followers if follower.node not in maximal)

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        if self.pending is None:
            return self.isr
        return self.isr + tuple(node for node in self.pending.isr if node not in self.isr)

    # -- What is committed ------------------------------------------------------------------------

    def held_by_all(self, held: int, high_watermark: int) -> int:
        """Up to where the maximal ISR holds the log, of which we hold ``held``.

        A follower that has nearly caught up counts as well: else the high watermark would run ahead
        of it for ever, and it could never join.
        """
        for follower in self.in_sync:
            held = min(held, follower.end_offset)
        if held > high_watermark:
            for follower in self.outside:
                if follower.end_offset < held and self._is_close(follower, held):
                    held = max(follower.end_offset, high_watermark)
        return held

    def _is_close(self, follower: Follower, leader_end: int) -> bool:
        peers = self._peers
        return (
            follower.end_offset >= self.epoch_start
            and follower.node not in self._lost
            and is_within(
                peers.limits,
                leader_end=leader_end,
                end_offset=follower.end_offset,
                caught_up_at=follower.caught_up_at,
                now=peers.now(),
            )
            and peers.may_join(follower.node, follower.broker_epoch)
        )

    # -- Proposing --------------------------------------------------------------------------------

    def consider_joins(self, leader_end: int, high_watermark: int) -> None:
        """Propose whoever may come in. One proposal at a time."""
        if self.pending is not None or not self.outside or self._peers.now() < self._not_before:
            return
        joining = [
            follower.node
            for follower in self.outside
            if holds_what_was_acknowledged(
                end_offset=follower.end_offset,
                high_watermark=high_watermark,
                epoch_start=self.epoch_start,
            )
            and self._is_close(follower, leader_end)
        ]
        if joining:
            wanted = (*self.isr, *joining)
            self._propose(tuple(node for node in self.replicas if node in wanted))

    def look(self, leader_end: int, high_watermark: int, min_in_sync: int) -> None:
        """From time to time: propose whoever must go, else whoever may come."""
        peers = self._peers
        now, limits = peers.now(), peers.limits
        for follower in self.followers.values():
            follower.look(leader_end)
            messages = leader_end - follower.end_offset
            if follower.lag is not None or messages > limits.lag_messages:
                follower.lag = next_window(limits, follower.lag, messages=messages, now=now)
        if self.pending is not None or now < self._not_before:
            return
        if self.is_recovering:
            # After an unclean election: we serve what we have, and say so (KIP-704).
            self._propose(self.isr)
            return
        gone = leavers(
            limits,
            [follower.standing() for follower in self.in_sync if follower.end_offset < leader_end],
            leader_end=leader_end,
            isr_size=len(self.isr),
            min_in_sync=min_in_sync,
            now=now,
        )
        if gone:
            self._propose(tuple(node for node in self.isr if node not in gone))
        else:
            self.consider_joins(leader_end, high_watermark)

    def _propose(self, isr: tuple[NodeId, ...]) -> None:
        assert self._me in isr, f"a leader proposes {isr} without itself, {self._me}"
        epochs: dict[NodeId, int] = {}
        for node in isr:
            follower = self.followers.get(node)
            known = -1 if follower is None else follower.broker_epoch
            epochs[node] = known if known >= 0 else self._peers.epoch_of(node)
        self.pending = Proposal(
            isr=isr,
            leader_epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            broker_epochs=epochs,
        )
        self._divide()

    def judged(self, proposal: Proposal, verdict: Verdict) -> float | None:
        """Take an answer; gives the seconds after which the proposal must be sent again, if so."""
        if self.pending is not proposal:
            return None  # an image was faster
        if verdict.error is ErrorCode.NONE:
            if (
                verdict.leader_epoch == self.epoch
                and verdict.partition_epoch > proposal.partition_epoch
            ):
                self.is_recovering = False
                self._commit(verdict.isr, verdict.partition_epoch)
            elif verdict.leader_epoch == self.epoch:
                # Already as we want it: nothing had to be changed.
                self.pending = None
                self.is_recovering = False
                self._divide()
            return None
        self._peers.rejected.value += 1
        if verdict.error in NOT_APPLIED:
            self.pending = None
            self._not_before = self._peers.now() + REFUSAL_PAUSE_SECONDS
            self._divide()
            return None
        return IMAGE_SECONDS if verdict.error in AWAIT_IMAGE else RETRY_SECONDS
