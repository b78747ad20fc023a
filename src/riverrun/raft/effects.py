"""What the core wants done: executed strictly in order, each before the next, and all of them
before the next event is given to the core.

So what an effect reads from the log is what the core saw when it decided, and nothing leaves the
node before what it depends on is on the disk.
"""

from __future__ import annotations

from riverrun.model.dataclasses import dataclass, field
from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft.messages import Request, Response
from riverrun.raft.types import Endpoint, QuorumState, SnapshotId, VoterSet


@dataclass(frozen=True, slots=True)
class Persist:
    """Durable before any later effect: a vote must not be given twice after a crash. A failure
    stops the node."""

    state: QuorumState


@dataclass(frozen=True, slots=True)
class Send:
    """Ask a peer; the outcome comes as exactly one ``Answered`` or ``Failed`` (also a timeout, by
    ``controller.quorum.request.timeout.ms``).

    Peers below -1 are bootstrap endpoints whose node is not known.
    """

    peer: NodeId
    endpoint: Endpoint
    request: Request


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Whole batches from an offset, up to ``max_bytes`` but at least one, up to the log's end."""

    offset: Offset
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    snapshot: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer whoever asked with this token; if ``read`` is given, with these bytes as ``data``.

    The bytes must be read before the next event: afterwards the log may be another leader's.
    """

    token: object
    response: Response
    read: ReadLog | ReadSnapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """The first record of an epoch."""

    leader: NodeId
    voters: tuple[NodeId, ...]
    granting: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SetVoters:
    """From here on these vote."""

    voters: VoterSet


ControlRecord = LeaderChange | SetVoters


@dataclass(frozen=True, slots=True)
class AppendControl:
    """This leader writes a batch of control records, at the end of the log, in ``epoch``. Then
    ``LogChanged``; if it fails for want of room, ``Resign`` instead."""

    epoch: LeaderEpoch
    records: tuple[ControlRecord, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """A follower adds what the leader sent, unchanged, after checking each batch: its CRC, and that
    it follows the end of the log. Batches that the log has already are skipped. Voters records in
    it count at once (``LogView.voters``). Then ``LogChanged``; if nothing could be appended (bad
    bytes, no room), ``Failed(peer, request)`` instead."""

    peer: NodeId
    request: Request
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut off all from an offset on, voters records included. Then ``LogChanged``."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class Flush:
    """Begin to make durable all that is in the log now; ``Flushed`` when it is. Does not hold back
    later effects. A failure stops the node."""


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Put a part of a snapshot that is being fetched at its place; position 0 begins anew."""

    snapshot: SnapshotId
    position: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The snapshot is whole: check it, make it durable, drop the log and begin it anew where the
    snapshot ends, with the voters that it names. Then ``SnapshotInstalled``, or
    ``SnapshotFailed``."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Committed:
    """All before this offset is committed for ever, and is in the log or snapshot of this node."""

    high_watermark: Offset


@dataclass(frozen=True, slots=True)
class BecameLeader:
    """Before the leader change record, which is at ``start_offset``, is appended. The controller
    may judge when that is committed."""

    epoch: LeaderEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True)
class LostLeadership:
    """Nothing may be appended from now on. What was not committed may be, or may be lost."""

    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Follows:
    """The leader that this node knows, or none; once for each change of leader or epoch."""

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
