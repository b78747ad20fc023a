"""Effects requested by the core. They are executed strictly in order, all of them before the next
event.

So an effect reads the log as the core saw it, and no message leaves the node before the data it
depends on is durable.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft.messages import Request, Response
from riverrun.raft.types import Endpoint, QuorumState, SnapshotId, VoterSet


class Persist(Struct, frozen=True):
    """Must be durable before any later effect, so that no vote is given twice after a crash. A
    failure stops the node."""

    state: QuorumState


class Send(Struct, frozen=True):
    """Send a request. The result is exactly one ``Answered`` or ``Failed`` (also for a timeout,
    ``controller.quorum.request.timeout.ms``).

    Peers below -1 are bootstrap endpoints with unknown node ids.
    """

    peer: NodeId
    endpoint: Endpoint
    request: Request


class ReadLog(Struct, frozen=True):
    """Whole batches from an offset, up to ``max_bytes`` but at least one, up to the log end."""

    offset: Offset
    max_bytes: int


class ReadSnapshot(Struct, frozen=True):
    snapshot: SnapshotId
    position: int
    max_bytes: int


class Respond(Struct, frozen=True):
    """Send the response for this token, with the bytes of ``read`` as ``data`` if given.

    The bytes must be read before the next event, because the log may be another leader's
    afterwards.
    """

    token: object
    response: Response
    read: ReadLog | ReadSnapshot | None = None


class LeaderChange(Struct, frozen=True, kw_only=True):
    """The first record of an epoch."""

    leader: NodeId
    voters: tuple[NodeId, ...]
    granting: tuple[NodeId, ...]


class SetVoters(Struct, frozen=True):
    """Replace the voter set."""

    voters: VoterSet


ControlRecord = LeaderChange | SetVoters


class AppendControl(Struct, frozen=True):
    """Append a batch of control records in ``epoch`` as leader. Then ``LogChanged``; if there is no
    space, ``Resign``."""

    epoch: LeaderEpoch
    records: tuple[ControlRecord, ...]


class Append(Struct, frozen=True):
    """Append a leader's batches unchanged, after checking each CRC and that it follows the log end.
    Known batches are skipped. Voters records count at once (``LogView.voters``). Then
    ``LogChanged``; if nothing could be appended (invalid bytes, no space), ``Failed(peer,
    request)``."""

    peer: NodeId
    request: Request
    data: bytes


class Truncate(Struct, frozen=True):
    """Remove everything from an offset on, including voters records. Then ``LogChanged``."""

    offset: Offset


class Flush(Struct, frozen=True):
    """Start to make the whole log durable; ``Flushed`` follows. Does not delay later effects. A
    failure stops the node."""


class WriteSnapshot(Struct, frozen=True):
    """Store a part of a snapshot that is being fetched. Position 0 starts a new file."""

    snapshot: SnapshotId
    position: int
    data: bytes


class InstallSnapshot(Struct, frozen=True):
    """The snapshot is complete. Validate it, make it durable, and restart the log at its end, with
    its voters. Then ``SnapshotInstalled`` or ``SnapshotFailed``."""

    snapshot: SnapshotId


class Committed(Struct, frozen=True):
    """Everything before this offset is committed and is in this node's log or snapshot."""

    high_watermark: Offset


class BecameLeader(Struct, frozen=True):
    """Precedes the append of the leader change record at ``start_offset``. The controller may act
    when that record is committed."""

    epoch: LeaderEpoch
    start_offset: Offset


class LostLeadership(Struct, frozen=True):
    """No further appends are allowed. Uncommitted records may be committed later, or lost."""

    epoch: LeaderEpoch


class Follows(Struct, frozen=True):
    """The known leader, or None. Sent once per change of leader or epoch."""

    leader: NodeId | None
    epoch: LeaderEpoch
    endpoint: Endpoint | None


Effect = (
    Persist
    | Send
    | Respond
    | AppendControl
    | Append
    | Truncate
    | Flush
    | WriteSnapshot
    | InstallSnapshot
    | Committed
    | BecameLeader
    | LostLeadership
    | Follows
)
