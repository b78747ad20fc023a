"""The quorum as its members see it: for DescribeQuorum, health and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from riverrun.metadata.quorum import Voter
from riverrun.model.ids import LeaderEpoch, NodeId, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescription:
    """A replica of the metadata log as its leader knows it; times are wall clock, -1 unknown."""

    id: NodeId
    directory_id: UUID | None
    log_end_offset: Offset
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    endpoints: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Known of voters alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """``observers`` and the progress of voters are known to the leader alone."""

    leader: NodeId | None
    epoch: LeaderEpoch
    high_watermark: Offset
    voters: tuple[ReplicaDescription, ...]
    observers: tuple[ReplicaDescription, ...] = ()


def describe_sole_voter(
    voter: Voter, *, epoch: LeaderEpoch, high_watermark: Offset, end_offset: Offset, now_ms: int
) -> QuorumDescription:
    described = ReplicaDescription(
        id=voter.id,
        directory_id=voter.directory_id,
        log_end_offset=end_offset,
        last_fetch_ms=now_ms,
        last_caught_up_ms=now_ms,
        endpoints=voter.endpoints,
    )
    return QuorumDescription(
        leader=voter.id, epoch=epoch, high_watermark=high_watermark, voters=(described,)
    )
