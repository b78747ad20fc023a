"""The state of one partition that this node follows under one leader epoch.

    FETCHING ──diverging epoch, out of range──> TRUNCATING ──truncated──> FETCHING
    FETCHING, TRUNCATING ──error of the leader──> DELAYED ──back-off──> FETCHING
    FETCHING, TRUNCATING ──error of our disk──> FAILED ──back-off──> FETCHING

A new leader or leader epoch starts with a new ``FollowedPartition``, in FETCHING and without delay.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

from riverrun.model.ids import LeaderEpoch
from riverrun.replication.isr import NEVER
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
    """Created by the ``FetchPlan`` that fetches the partition."""

    __slots__ = (
        "attempts",
        "caught_up_at",
        "due",
        "error",
        "is_damaged",
        "key",
        "leader_epoch",
        "leader_high_watermark",
        "log",
        "partition",
        "requested",
        "state",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log = partition.log
        self.key: Key = (partition.topic_id, partition.name.partition)
        self.leader_epoch: LeaderEpoch = partition.leader_epoch
        self.state = FollowState.FETCHING
        self.requested: FetchPartition | None = None
        """The entry of this partition in the leader's fetch session."""
        self.attempts = 0
        """Errors in a row."""
        self.due = 0.0
        """The time of the next attempt."""
        self.error = ""
        self.is_damaged = False
        """Whether the damaged records must be fetched again."""
        self.leader_high_watermark = -1
        self.caught_up_at = NEVER
        """When this replica last had all committed records."""

    @property
    def is_valid(self) -> bool:
        """Whether a response of this epoch's leader may still change our log."""
        partition = self.partition
        return (
            partition.leader_epoch == self.leader_epoch
            and not partition.is_leader
            and not self.log.is_offline
        )

    @property
    def lag(self) -> int:
        """Committed records that this replica lacks, by the last known high watermark."""
        return max(self.leader_high_watermark - self.log.end_offset, 0)

    @property
    def is_unflushed(self) -> bool:
        """Whether a fetch would acknowledge records that a power failure could take back."""
        log = self.log
        return log.flushed_offset < log.end_offset and log.settings.flush_before_ack

    def enter(self, state: FollowState) -> None:
        if state is not self.state:
            assert state in TRANSITIONS[self.state], (
                f"{self.partition.name} went from {self.state} to {state}"
            )
            self.state = state

    def to_fetch(self, max_bytes: int) -> FetchPartition:
        """The entry of the next fetch, from our log end offset and with our latest epoch."""
        log = self.log
        return FetchPartition(
            self.key[0],
            self.key[1],
            log.end_offset,
            max_bytes,
            self.leader_epoch,
            log.epochs.latest,
            log.start_offset,
        )
