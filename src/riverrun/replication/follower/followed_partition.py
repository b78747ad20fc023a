"""One partition that this node follows: in which state, under which leader, since when in trouble.

    FETCHING ──diverging epoch, out of range──> TRUNCATING ──cut──> FETCHING
    FETCHING ──the leader's error──> DELAYED ──time──> FETCHING
    FETCHING, TRUNCATING ──our disk's error──> FAILED ──time──> FETCHING

A new leader or epoch begins with a new ``FollowedPartition``, in FETCHING and without delay.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

from riverrun.model.ids import LeaderEpoch
from riverrun.replication.partition import Partition
from riverrun.wire.fetch import FetchPartition

Key = tuple[UUID, int]


class FollowState(Enum):
    FETCHING = "fetching"
    TRUNCATING = "truncating"
    DELAYED = "delayed"
    FAILED = "failed"


TRANSITIONS: dict[FollowState, tuple[FollowState, ...]] = {
    FollowState.FETCHING: (FollowState.TRUNCATING, FollowState.DELAYED, FollowState.FAILED),
    FollowState.TRUNCATING: (FollowState.FETCHING, FollowState.DELAYED, FollowState.FAILED),
    FollowState.DELAYED: (FollowState.FETCHING,),
    FollowState.FAILED: (FollowState.FETCHING,),
}


class FollowedPartition:
    """Made by the plan that fetches it."""

    __slots__ = (
        "asked",
        "attempts",
        "due",
        "is_damaged",
        "key",
        "leader_epoch",
        "leader_high_watermark",
        "log",
        "partition",
        "reason",
        "state",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log = partition.log
        self.key: Key = (partition.topic_id, partition.name.partition)
        self.leader_epoch: LeaderEpoch = partition.leader_epoch
        self.state = FollowState.FETCHING
        self.asked: FetchPartition | None = None
        """What the leader believes that we want, in the session of now."""
        self.attempts = 0
        """Errors since something was fetched."""
        self.due = 0.0
        """When it is tried again."""
        self.reason = ""
        self.is_damaged = False
        """Whether all of it is to be fetched again."""
        self.leader_high_watermark = -1

    @property
    def is_valid(self) -> bool:
        """Whether what the leader of this epoch says still concerns our log."""
        partition = self.partition
        return (
            partition.leader_epoch == self.leader_epoch
            and not partition.is_leader
            and not self.log.is_offline
        )

    @property
    def lag(self) -> int:
        """Committed records that we lack, as far as we know."""
        return max(self.leader_high_watermark - self.log.end_offset, 0)

    @property
    def is_unsynced(self) -> bool:
        """Whether to ask for more now would acknowledge what a power cut could take back."""
        log = self.log
        return log.flushed_offset < log.end_offset and log.settings.flush_before_ack

    def enter(self, state: FollowState) -> None:
        if state is not self.state:
            assert state in TRANSITIONS[self.state], (
                f"{self.partition.name} went from {self.state} to {state}"
            )
            self.state = state

    def wish(self, max_bytes: int) -> FetchPartition:
        """What is asked of the leader: all from our end on, if our history is its own."""
        log = self.log
        return FetchPartition(
            self.key[0], self.key[1], log.end_offset, max_bytes, self.leader_epoch,
            log.epochs.latest, log.start_offset,
        )  # fmt: skip
