"""The roles of a member, the state of each role, and the table of transitions.

Only ``QuorumState`` survives a restart. The rules are in ``elections``, ``following``, ``leading``
and ``changes``.
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
    """Requests to one peer: one in flight, with a pause after a failure."""

    in_flight: Request | None = None
    retry_at: float = 0.0
    failures: int = 0

    def is_due(self, now: float) -> bool:
        return self.in_flight is None and now >= self.retry_at

    @property
    def due(self) -> float:
        return self.retry_at if self.in_flight is None else float("inf")


class Round(Struct):
    """The votes or pre-votes that one candidate collects in one attempt."""

    granted: dict[ReplicaKey, None] = field(default_factory=dict)
    rejected: dict[ReplicaKey, None] = field(default_factory=dict)
    refused: dict[ReplicaKey, None] = field(default_factory=dict)
    """Voters whose process is known to be dead. They may restart and grant a vote later."""
    asks: dict[ReplicaKey, Ask] = field(default_factory=dict)

    def is_won(self, voters: VoterSet) -> bool:
        return sum(voter.key in self.granted for voter in voters) >= voters.majority

    def is_hopeless(self, voters: VoterSet) -> bool:
        gone = sum(voter.key in self.rejected or voter.key in self.refused for voter in voters)
        return len(voters) - gone < voters.majority


class Unattached(Struct, kw_only=True):
    """Knows no leader of its epoch. Waits, looks for one, and votes when asked."""

    deadline: float
    losses: int = 0


class Prospective(Struct, kw_only=True):
    """Sends pre-votes before it starts a new epoch (KIP-996)."""

    deadline: float
    known_leader: NodeId | None
    """The epoch's leader, which is dead or was silent for a fetch timeout."""
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
    """End of the fetch timeout."""
    has_fetched: bool = False
    is_leader_gone: bool = False
    """The leader resigned or its process ended. The deadline is close, and others may stand."""


class Replica(Struct, kw_only=True):
    """A leader's state of a voter or observer."""

    offset: Offset
    """Everything below it is flushed on the replica and equal to the leader's log."""
    last_seen: float
    """Time of the last fetch, moved forward by our own stalls, so that they do not count against
    the replica."""
    last_heard: float
    last_fetch: float | None
    """The last time that its log matched ours."""
    last_caught_up: float | None = None
    leader_end_at_last_fetch: Offset
    known_high_watermark: Offset


class Held(Struct, frozen=True, kw_only=True):
    """A long-polled fetch at the end of the log."""

    request: FetchRequest
    token: object
    deadline: float


class Change(Struct, kw_only=True):
    """A voter change. It first waits for its voter to catch up, then for its record to be
    committed."""

    request: AddVoterRequest | RemoveVoterRequest | UpdateVoterRequest
    token: object | None
    """None after the response was sent, or if the leader itself started the change."""
    deadline: float
    offset: Offset | None = None
    """Offset of the record; None until it is in the log."""
    is_appended: bool = False


class Leader(Struct, kw_only=True):
    start_offset: Offset
    """Offset of the leader change record. Nothing below it is committed by counting (Raft 5.4.2).
    """
    since: float
    replicas: dict[ReplicaKey, Replica] = field(default_factory=dict)
    held: dict[ReplicaKey, Held] = field(default_factory=dict)
    begins: dict[ReplicaKey, Ask] = field(default_factory=dict)
    change: Change | None = None
    has_fallen: bool = False
    """The leader may not append any more and is about to leave this role."""


class Resigned(Struct, kw_only=True):
    """Led this epoch and gave it up. Notifies the voters and never leads this epoch again."""

    deadline: float
    successors: tuple[ReplicaKey, ...]
    asks: dict[ReplicaKey, Ask]
    """Requests to the voters that have not responded."""


Role = Unattached | Prospective | Candidate | Follower | Leader | Resigned

TRANSITIONS: Final[Mapping[type, tuple[type, ...]]] = {
    Unattached: (Unattached, Prospective, Follower),
    Prospective: (Unattached, Prospective, Candidate, Follower),
    Candidate: (Unattached, Prospective, Leader, Follower),
    Follower: (Unattached, Prospective, Follower),
    Leader: (Unattached, Follower, Resigned),
    Resigned: (Unattached, Follower),
}
