"""The messages between quorum members, in domain terms.

Each has a counterpart in Kafka's protocol (Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch
1, FetchSnapshot 59, AddRaftVoter 80, RemoveRaftVoter 81, UpdateRaftVoter 82). ``server`` encodes
them, adds cluster id and topic names, and rejects requests of other clusters.
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
    """Requests a vote. With ``pre_vote`` it only asks whether the vote would be granted, which
    binds no one (KIP-996). The ``epoch`` of a pre-vote is the sender's current epoch."""

    candidate: ReplicaKey
    epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    """Epoch of the last record in the candidate's log."""
    end_offset: Offset
    """End of the candidate's log, exclusive."""
    voter: ReplicaKey
    """The addressed voter. Another directory of the same node must not respond for it (KIP-853)."""
    pre_vote: bool = False


class BeginQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    """A new leader announces itself to a voter."""

    leader: NodeId
    epoch: LeaderEpoch
    endpoints: Endpoints
    """The leader's endpoints."""
    voter: ReplicaKey


class EndQuorumEpochRequest(Struct, frozen=True, kw_only=True):
    """A leader resigns. The first of ``successors`` stands at once, each later one a little
    later."""

    leader: NodeId
    epoch: LeaderEpoch
    endpoints: Endpoints
    successors: tuple[ReplicaKey, ...]


class FetchRequest(Struct, frozen=True, kw_only=True):
    """A replica requests the records after its log. Everything before ``fetch_offset`` is flushed
    there."""

    replica: ReplicaKey
    epoch: LeaderEpoch
    """The replica's leader epoch."""
    fetch_offset: Offset
    last_fetched_epoch: LeaderEpoch
    """Epoch of the record before ``fetch_offset``."""
    max_wait_ms: int
    max_bytes: int
    high_watermark: Offset | None = None
    """The replica's high watermark (Fetch 18, KIP-1166); None if not given."""


class FetchSnapshotRequest(Struct, frozen=True, kw_only=True):
    replica: ReplicaKey
    epoch: LeaderEpoch
    snapshot: SnapshotId
    position: int
    max_bytes: int


class AddVoterRequest(Struct, frozen=True, kw_only=True):
    """From an operator, or from a node that may vote (KIP-853, KIP-1186)."""

    voter: Voter
    timeout_ms: int
    ack_when_committed: bool = True
    """False: respond when the new voters are in the leader's log. A joining node uses this, because
    it must keep fetching for the change to be committed."""


class RemoveVoterRequest(Struct, frozen=True, kw_only=True):
    voter: ReplicaKey
    timeout_ms: int = 30_000


class UpdateVoterRequest(Struct, frozen=True, kw_only=True):
    """From a voter whose endpoints or supported versions differ from the voter set."""

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
    """Fields of every response: the error, and the leader as the responding node knows it."""

    error: ErrorCode = ErrorCode.NONE
    leader: NodeId | None = None
    epoch: LeaderEpoch = NO_EPOCH
    endpoint: Endpoint | None = None
    """The leader's endpoint on the controller listener."""


class VoteResponse(Answer, frozen=True, kw_only=True):
    granted: bool = False


class BeginQuorumEpochResponse(Answer, frozen=True, kw_only=True):
    pass


class EndQuorumEpochResponse(Answer, frozen=True, kw_only=True):
    pass


class FetchResponse(Answer, frozen=True, kw_only=True):
    """Without an error, exactly one of: diverging, snapshot, or data (possibly empty)."""

    high_watermark: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    diverging: EpochEnd | None = None
    """The replica's log is not a prefix of the leader's. This is where the epoch of its last
    record, or the greatest epoch below it, ends in the leader's log."""
    snapshot: SnapshotId | None = None
    """The requested records are no longer in the log; the replica fetches this snapshot (KIP-630).
    """
    data: bytes = b""
    """Whole batches from the fetch offset on. The core leaves it empty; see ``Respond.read``."""


class FetchSnapshotResponse(Answer, frozen=True, kw_only=True):
    snapshot: SnapshotId | None = None
    size: int = 0
    """Size of the whole snapshot."""
    position: int = 0
    data: bytes = b""
    """Bytes from the position on. The core leaves it empty; see ``Respond.read``."""


class ChangeVotersResponse(Answer, frozen=True, kw_only=True):
    """Response to AddVoter, RemoveVoter and UpdateVoter."""

    message: str | None = None


Response = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | ChangeVotersResponse
)
