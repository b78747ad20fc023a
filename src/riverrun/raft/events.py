"""Events for the core. Times are the ``now`` of ``Raft.step``, never part of an event."""

from __future__ import annotations

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.raft.messages import Request, Response
from riverrun.raft.types import SnapshotId


class Tick(Struct, frozen=True):
    """Time passed. Due at ``Raft.next_deadline``, allowed at any time. It is the first event."""


class Received(Struct, frozen=True):
    """A request from another member. ``Respond`` with the token carries the response, now or
    later."""

    request: Request
    token: object


class Answered(Struct, frozen=True):
    """A response to a request. ``request`` is the same object as in ``Send``."""

    peer: NodeId
    request: Request
    response: Response


class Failed(Struct, frozen=True):
    """A request failed, or its response could not be stored (see ``Append``).

    ``is_refused`` means that the connection broke and a new one was refused, or that another
    incarnation responds. Only that proves a process dead; silence, timeouts and an unreachable
    network do not.
    """

    peer: NodeId
    request: Request
    is_refused: bool = False


class LogChanged(Struct, frozen=True):
    """The log end moved, by a local append or because ``Append``, ``AppendControl`` or ``Truncate``
    was executed. It precedes any other event."""


class Flushed(Struct, frozen=True):
    """``LogView.flushed_offset`` moved, or a ``Flush`` had nothing to do."""


class SnapshotInstalled(Struct, frozen=True):
    """``InstallSnapshot`` was executed. The log is empty and starts at the end of the snapshot."""

    snapshot: SnapshotId


class SnapshotFailed(Struct, frozen=True):
    """``WriteSnapshot`` or ``InstallSnapshot`` failed: no space, or a corrupt snapshot."""

    snapshot: SnapshotId


class Resign(Struct, frozen=True):
    """Give up leadership of this epoch, for example because the disk is full. No effect on
    followers."""


class Shutdown(Struct, frozen=True):
    """The node stops: a leader hands over and the member no longer stands. Wait for
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
