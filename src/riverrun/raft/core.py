"""The state machine of one member of the quorum, voter or observer.

``Raft.step`` takes the time and an event and returns effects, to be executed strictly in order; it
waits for nothing and touches nothing but itself. Storage, network and timers are left to
``runner.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from riverrun.model.ids import LeaderEpoch, NodeId, Offset
from riverrun.ports.randomness import Randomness
from riverrun.raft.effects import Effect
from riverrun.raft.events import Event
from riverrun.raft.log_view import LogView
from riverrun.raft.settings import QuorumSettings
from riverrun.raft.types import Endpoint, QuorumState, ReplicaKey, Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a replica is, as its leader knows."""

    key: ReplicaKey
    is_voter: bool
    end_offset: Offset
    last_fetch: float | None
    last_caught_up: float | None


class Raft:
    """One member. The voters are always those of ``log.voters``; a member that is not among them
    observes. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        *,
        me: Voter,
        log: LogView,
        state: QuorumState | None,
        settings: QuorumSettings,
        randomness: Randomness,
        listener: str = "CONTROLLER",
        bootstrap: Sequence[Endpoint] = (),
        may_vote: bool = True,
        joins: bool = False,
        high_watermark: Offset,
    ) -> None:
        """``me``: this node, its directory, and where it is reached now. ``state``: what
        ``Persist`` wrote last. ``listener``: the name of the endpoints to use. ``bootstrap``: whom
        to ask for the leader beside the voters. ``may_vote``: False for a node that is only a
        broker; it is never asked and never stands. ``joins``: become a voter when caught up,
        removing an older directory of this node (KIP-1186). ``high_watermark``: what is known to
        be committed, at least the newest snapshot's end. The first event must be ``Tick``."""
        raise NotImplementedError

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event. An assertion that fails means a bug: the node must stop."""
        raise NotImplementedError

    def next_deadline(self) -> float:
        """When a ``Tick`` is due; infinity for never."""
        raise NotImplementedError

    @property
    def epoch(self) -> LeaderEpoch:
        raise NotImplementedError

    @property
    def leader(self) -> NodeId | None:
        """Who leads the epoch, as far as this node knows; itself included."""
        raise NotImplementedError

    @property
    def leader_endpoint(self) -> Endpoint | None:
        raise NotImplementedError

    @property
    def is_leader(self) -> bool:
        """Whether this node may append."""
        raise NotImplementedError

    @property
    def high_watermark(self) -> Offset:
        """All before it is committed, as far as this node knows."""
        raise NotImplementedError

    @property
    def has_handed_over(self) -> bool:
        """After ``Shutdown`` or ``Resign``: every reachable voter knows, or somebody else leads."""
        raise NotImplementedError

    def progress(self) -> tuple[Progress, ...]:
        """Of all replicas if this node leads, voters first; else nothing."""
        raise NotImplementedError

    def heard_from(self, node: NodeId) -> float | None:
        """When the last exchange with a node succeeded, either way."""
        raise NotImplementedError
