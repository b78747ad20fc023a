"""What the core is told. Times are the ``now`` of ``Raft.step``, never part of an event."""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.raft.messages import Request, Response
from riverrun.raft.types import SnapshotId


class Tick(Struct, frozen=True):
    """Time passed: due at ``Raft.next_deadline``, welcome at any time. The first event of all."""


class Received(Struct, frozen=True):
    """Somebody asks. The answer comes as ``Respond`` with the token, at once or later."""

    request: Request
    token: object


class Answered(Struct, frozen=True):
    """A request that was sent is answered. ``request`` is the very object of the ``Send``."""

    peer: NodeId
    request: Request
    response: Response


class Failed(Struct, frozen=True):
    """A request that was sent has no answer and will have none; or what was answered could not be
    stored (see ``Append``).

    ``is_refused``: the connection broke and a new one was refused, or another incarnation answers.
    Only that proves a process dead; silence, a timeout and an unreachable network do not.
    """

    peer: NodeId
    request: Request
    is_refused: bool = False


class LogChanged(Struct, frozen=True):
    """The end of the log moved: an append of this leader's own, or ``Append``, ``AppendControl``
    or ``Truncate`` was executed. To be told before any other event that is not ``LogChanged``."""


class Flushed(Struct, frozen=True):
    """``LogView.flushed_offset`` moved, or a ``Flush`` found nothing to do."""


class SnapshotInstalled(Struct, frozen=True):
    """``InstallSnapshot`` was executed; the log is empty and begins where the snapshot ends."""

    snapshot: SnapshotId


class SnapshotFailed(Struct, frozen=True):
    """``WriteSnapshot`` or ``InstallSnapshot`` failed: no room, or what was fetched is corrupt."""

    snapshot: SnapshotId


class Resign(Struct, frozen=True):
    """Give up leading this epoch: the disk is full, say. Nothing if this node does not lead."""


class Shutdown(Struct, frozen=True):
    """The node stops: a leader hands over, nobody stands any more. Wait for
    ``Raft.has_handed_over`` (with a limit) before the last tick."""


Event = (
    Tick
    | Received
    | Answered
    | Failed
    | LogChanged
    | Flushed
    | SnapshotInstalled
    | SnapshotFailed
    | Resign
    | Shutdown
)
