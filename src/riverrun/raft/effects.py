"""What the core wants done: executed strictly in order, each before the next, and all of them
before the next event is given to the core.

So what an effect reads from the log is what the core saw when it decided, and nothing leaves the
node before what it depends on is on the disk.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.raft.messages import Request, Response
from riverrun.raft.types import Endpoint, QuorumState, SnapshotId, VoterSet


class Persist(Struct, frozen=True):
    """Durable before any later effect: a vote must not be given twice after a crash. A failure
    stops the node."""

    state: QuorumState


class Send(Struct, frozen=True):
    """Ask a peer; the outcome comes as exactly one ``Answered`` or ``Failed`` (also a timeout, by
    ``controller.quorum.request.timeout.ms``).

    Peers below -1 are bootstrap endpoints whose node is not known.
    """

    peer: NodeId
    endpoint: Endpoint
    request: Request


class ReadLog(Struct, frozen=True):
    """Whole batches from an offset, up to ``max_bytes`` but at least one, up to the log's end."""

    offset: Offset
    max_bytes: int


class ReadSnapshot(Struct, frozen=True):
    snapshot: SnapshotId
    position: int
    max_bytes: int


class Respond(Struct, frozen=True):
    """Answer whoever asked with this token; if ``read`` is given, with these bytes as ``data``.

    The bytes must be read before the next event: afterwards the log may be another leader's.
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
    """From here on these vote."""

    voters: VoterSet


ControlRecord = LeaderChange | SetVoters


class AppendControl(Struct, frozen=True):
    """This leader writes a batch of control records, at the end of the log, in ``epoch``. Then
    ``LogChanged``; if it fails for want of room, ``Resign`` instead."""

    epoch: LeaderEpoch
    records: tuple[ControlRecord, ...]


class Append(Struct, frozen=True):
    """A follower adds what the leader sent, unchanged, after checking each batch: its CRC, and that
    it follows the end of the log. Batches that the log has already are skipped. Voters records in
    it count at once (``LogView.voters``). Then ``LogChanged``; if nothing could be appended (bad
    bytes, no room), ``Failed(peer, request)`` instead."""

    peer: NodeId
    request: Request
    data: bytes


class Truncate(Struct, frozen=True):
    """Cut off all from an offset on, voters records included. Then ``LogChanged``."""

    offset: Offset


class Flush(Struct, frozen=True):
    """Begin to make durable all that is in the log now; ``Flushed`` when it is. Does not hold back
    later effects. A failure stops the node."""


class WriteSnapshot(Struct, frozen=True):
    """Put a part of a snapshot that is being fetched at its place; position 0 begins anew."""

    snapshot: SnapshotId
    position: int
    data: bytes


class InstallSnapshot(Struct, frozen=True):
    """The snapshot is whole: check it, make it durable, drop the log and begin it anew where the
    snapshot ends, with the voters that it names. Then ``SnapshotInstalled``, or
    ``SnapshotFailed``."""

    snapshot: SnapshotId


class Committed(Struct, frozen=True):
    """All before this offset is committed for ever, and is in the log or snapshot of this node."""

    high_watermark: Offset


class BecameLeader(Struct, frozen=True):
    """Before the leader change record, which is at ``start_offset``, is appended. The controller
    may judge when that is committed."""

    epoch: LeaderEpoch
    start_offset: Offset


class LostLeadership(Struct, frozen=True):
    """Nothing may be appended from now on. What was not committed may be, or may be lost."""

    epoch: LeaderEpoch


class Follows(Struct, frozen=True):
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
