"""What members of a quorum say to each other, in domain terms.

Each has its message in Kafka's protocol (Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch 1,
FetchSnapshot 59, AddRaftVoter 80, RemoveRaftVoter 81, UpdateRaftVoter 82). Encoding, cluster id and
topic names are left to ``server``, which answers for a wrong cluster itself.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NO_EPOCH, NO_OFFSET, LeaderEpoch, NodeId, Offset
from riverrun.raft.types import (
    Endpoint,
    Endpoints,
    EpochEnd,
    ReplicaKey,
    SnapshotId,
    Voter,
)


class VoteRequest(Struct, frozen=True, kw_only=True):
    """Asks for a vote; with ``pre_vote`` only whether it would be given, which binds nobody to
    anything (KIP-996). ``epoch`` of a pre-vote is the epoch that the asking replica is in."""

    candidate: ReplicaKey
    epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    """Of the last record in the candidate's log."""
    end_offset: Offset
    """Of the candidate's log, exclusive."""
    voter: ReplicaKey
    """Who is asked. Another directory of the same node must not answer for it (KIP-853)."""
    pre_vote: bool = False


class BeginQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    """A new leader makes itself known to a voter."""

    leader: NodeId
    epoch: LeaderEpoch
    endpoints: Endpoints
    """Where the leader is reached."""
    voter: ReplicaKey


class EndQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    """A leader resigns; the first of ``successors`` stands at once, each later one a bit after."""

    leader: NodeId
    epoch: LeaderEpoch
    endpoints: Endpoints
    successors: tuple[ReplicaKey, ...]


class FetchRequest(Struct, frozen=True, kw_only=True):
    """A replica asks for what follows its log; all before ``fetch_offset`` it has flushed."""

    replica: ReplicaKey
    epoch: LeaderEpoch
    """The leader epoch that the replica is in."""
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    """Of the record before ``fetch_offset``."""
    max_wait_ms: int
    max_bytes: int
    high_watermark: Offset | None = None
    """As the replica knows it (Fetch 18, KIP-1166); None if it does not say."""


class FetchSnapshotRequest(Struct, frozen=True, kw_only=True):
    replica: ReplicaKey
    epoch: LeaderEpoch
    snapshot: SnapshotId
    position: int
    max_bytes: int


class AddVoterRequest(Struct, frozen=True, kw_only=True):
    """From an operator or a node that may vote (KIP-853, KIP-1186)."""

    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True
    """False: answer when the new voters are in the leader's log, as a joining node asks, since it
    must fetch on for them to be committed."""


class RemoveVoterRequest(Struct, frozen=True, kw_only=True):
    voter: ReplicaKey
    timeout_ms: int = 30_000


class UpdateVoterRequest(Struct, frozen=True, kw_only=True):
    """From a voter that is reached elsewhere, or supports other versions, than the voters say."""

    voter: Voter
    epoch: LeaderEpoch


Request = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchRequest
    | FetchSnapshotRequest
    | AddVoterRequest
    | RemoveVoterRequest
    | UpdateVoterRequest
)


class Answer(Struct, frozen=True, kw_only=True):
    """What every response carries: the error, and who leads as far as the answering node knows."""

    error: ErrorCode = ErrorCode.NONE
    leader: NodeId | None = None
    epoch: LeaderEpoch = NO_EPOCH
    endpoint: Endpoint | None = None
    """Of the leader, on the controllers' listener."""


class VoteResponse(Answer, frozen=True, kw_only=True):
    granted: bool = False


class BeginQuorumEpochResponse(Answer, frozen=True, kw_only=True):
    pass


class EndQuorumEpochResponse(Answer, frozen=True, kw_only=True):
    pass


class FetchResponse(Answer, frozen=True, kw_only=True):
    """Exactly one of these when there is no error: diverging, snapshot, or data (maybe none)."""

    high_watermark: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    diverging: EpochEnd | None = None
    """The replica's log is not a prefix of the leader's: where the epoch of its last record, or the
    greatest below it, ends at the leader."""
    snapshot: SnapshotId | None = None
    """What the replica asks for is no longer in the log: it shall fetch this snapshot (KIP-630)."""
    data: bytes = b""
    """Whole batches from the fetch offset on. The core leaves it empty; see ``Respond.read``."""


class FetchSnapshotResponse(Answer, frozen=True, kw_only=True):
    snapshot: SnapshotId | None = None
    size: int = 0
    """Of the whole snapshot."""
    position: int = 0
    data: bytes = b""
    """From the position on. The core leaves it empty; see ``Respond.read``."""


class ChangeVotersResponse(Answer, frozen=True, kw_only=True):
    """To AddVoter, RemoveVoter and UpdateVoter."""

    message: str | None = None


Response = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | ChangeVotersResponse
)
