"""The roles of a member, what each of them remembers, and which may follow which.

None of it survives a restart but what ``QuorumState`` holds. The rules are in the modules that use
these values: ``elections``, ``following``, ``leading``, ``changes``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from riverrun.model.ids import NodeId, Offset
from riverrun.raft.messages import (
    AddVoterRequest,
    FetchRequest,
    RemoveVoterRequest,
    Request,
    UpdateVoterRequest,
)
from riverrun.raft.types import Endpoint, ReplicaKey, VoterSet


class Ask(Struct):
    """A conversation with one peer: one request at a time, and a pause after a failure."""

    in_flight: Request | None = None
    retry_at: float = 0.0
    failures: int = 0

    def is_due(self, now: float) -> bool:
        return self.in_flight is None and now >= self.retry_at

    @property
    def due(self) -> float:
        return self.retry_at if self.in_flight is None else float("inf")


class Round(Struct):
    """The votes, or pre-votes, that one replica collects in one attempt."""

    granted: dict[ReplicaKey, None] = field(default_factory=dict)
    rejected: dict[ReplicaKey, None] = field(default_factory=dict)
    refused: dict[ReplicaKey, None] = field(default_factory=dict)
    """Whose process is known to be gone; it may come back and grant after all."""
    asks: dict[ReplicaKey, Ask] = field(default_factory=dict)

    def is_won(self, voters: VoterSet) -> bool:
        return sum(voter.key in self.granted for voter in voters) >= voters.majority

    def is_hopeless(self, voters: VoterSet) -> bool:
        gone = sum(voter.key in self.rejected or voter.key in self.refused for voter in voters)
        return len(voters) - gone < voters.majority


class Unattached(Struct, kw_only=True):
    """Knows no leader of its epoch: waits, looks for one, votes if asked."""

    deadline: float
    losses: int = 0


class Prospective(Struct, kw_only=True):
    """Asks whether it would be elected, before it disturbs anybody by a new epoch (KIP-996)."""

    deadline: float
    known_leader: NodeId | None
    """Of the epoch, but silent for a fetch timeout, or gone."""
    known_endpoint: Endpoint | None
    losses: int
    round: Round
    is_backing_off: bool = False


class Candidate(Struct, kw_only=True):
    """Has voted for itself in a new epoch."""

    deadline: float
    losses: int
    round: Round
    is_backing_off: bool = False


class Follower(Struct, kw_only=True):
    leader: NodeId
    endpoint: Endpoint
    deadline: float
    """Of the fetch timeout."""
    has_fetched: bool = False
    is_leader_gone: bool = False
    """It resigned, or its process ended: the deadline is near, and others may stand."""


class Replica(Struct, kw_only=True):
    """What a leader knows of a voter or observer."""

    offset: Offset
    """All before it is flushed there and equal to the leader's log."""
    last_seen: float
    """Later than that by what this process stood still since: own stalls condemn nobody."""
    last_heard: float
    last_fetch: float | None
    """The last one that its log agreed with ours."""
    last_caught_up: float | None = None
    leader_end_at_last_fetch: Offset
    told_high_watermark: Offset


class Held(Struct, frozen=True, kw_only=True):
    """A fetch at the end of the log, answered when there is something to say."""

    request: FetchRequest
    token: object
    deadline: float


class Change(Struct, kw_only=True):
    """A change of voters: waits for its voter, then for its record to be committed."""

    request: AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest
    token: object | None
    """None once it is answered, or if the leader itself asked."""
    deadline: float
    offset: Offset | None = None
    """Of the record; None until it is in the log."""
    is_appended: bool = False


class Leader(Struct, kw_only=True):
    start_offset: Offset
    """Of the leader change record: nothing before it is committed by counting (Raft 5.4.2)."""
    since: float
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    held: dict[ReplicaKey, Held] = field(default_factory=dict)
    begins: dict[ReplicaKey, Ask] = field(default_factory=dict)
    change: Change | None = None
    has_fallen: bool = False
    """It may append nothing more, and is about to leave this role."""


class Resigned(Struct, kw_only=True):
    """Led this epoch and does no more; tells the voters, and never leads it again."""

    deadline: float
    successors: tuple[ReplicaKey, ...]
    asks: dict[ReplicaKey, Ask]
    """Of those who have not answered."""


Role = Unattached | Prospective | Candidate | Follower | Leader | Resigned

TRANSITIONS: Final[Mapping[type, tuple[type, ...]]] = {
    Unattached: (Unattached, Prospective, Follower),
    Prospective: (Unattached, Prospective, Candidate, Follower),
    Candidate: (Unattached, Prospective, Leader, Follower),
    Follower: (Unattached, Prospective, Follower),
    Leader: (Unattached, Follower, Resigned),
    Resigned: (Unattached, Follower),
}
