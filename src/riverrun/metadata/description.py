"""The state of the quorum as its members see it: for DescribeQuorum, health and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from msgspec import Struct, field

from riverrun.metadata.quorum import Voter
from riverrun.model.ids import NO_OFFSET, LeaderEpoch, NodeId, Offset
from riverrun.raft.core import Raft
from riverrun.raft.types import Endpoints, ReplicaKey


class ReplicaDescription(Struct, frozen=True, kw_only=True):
    """A replica of the metadata log as its leader knows it. Times are wall clock, -1 if unknown."""

    id: NodeId
    directory_id: UUID | None
    log_end_offset: Offset
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Known for voters only."""


class QuorumDescription(Struct, frozen=True, kw_only=True):
    """Only the leader knows ``observers`` and the progress of voters."""

    leader: NodeId | None
    epoch: LeaderEpoch
    high_watermark: Offset
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...] = ()


def describe(
    raft: Raft, voters: Sequence[Voter], *, end_offset: Offset, now: float, now_ms: int
) -> QuorumDescription:
    """``now`` and ``now_ms`` are the same moment on the two clocks."""
    by_key = {progress.key: progress for progress in raft.progress()}

    def described(key: ReplicaKey, endpoints: Endpoints) -> ReplicaDescription:
        progress = by_key.get(key)
        is_leader = raft.is_leader and key.id == raft.leader

        def wall(moment: float | None) -> int:
            if is_leader:
                return now_ms
            return -1 if moment is None else now_ms - round((now - moment) * 1000)

        return ReplicaDescription(
            id=key.id,
            directory_id=key.directory_id,
            log_end_offset=end_offset
            if is_leader
            else progress.end_offset
            if progress
            else NO_OFFSET,
            last_fetch_ms=wall(progress.last_fetch if progress else None),
            last_caught_up_ms=wall(progress.last_caught_up if progress else None),
            endpoints=endpoints,
        )

    return QuorumDescription(
        leader=raft.leader,
        epoch=raft.epoch,
        high_watermark=raft.high_watermark,
        voters=tuple(described(voter.key, voter.endpoints) for voter in voters),
        observers=tuple(described(key, {}) for key, one in by_key.items() if not one.is_voter),
    )
