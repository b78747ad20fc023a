"""Which moves of a plan to start next.

The state is in the metadata: a move is done when its partition has the planned replicas, and in
flight when the partition is being reassigned. So a new controller continues from the stored plan
and its image, and starting a move twice does no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from msgspec import Struct

from riverrun.model.ids import NodeId
from riverrun.placement.planner.plan import PlannedMove


class MoveLimits(Struct, frozen=True, kw_only=True):
    """Moves that copy data at the same time."""

    per_source: int = 5
    per_destination: int = 5
    in_cluster: int = 50
    leaders_at_once: int = 250
    """Moves that only reorder replicas, started per step."""


class PartitionNow(Struct, frozen=True, kw_only=True):
    """A partition in the image; ``replicas`` are the target's if it is being reassigned."""

    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    is_moving: bool


class MoveState(Enum):
    WAITING = "waiting"
    MOVING = "moving"
    DONE = "done"
    DROPPED = "dropped"
    """The partition is gone, or something else changed its replicas since the plan was made."""


class ScheduleStep(Struct, frozen=True, kw_only=True):
    """What to start now, and how many moves are in which state."""

    start: tuple[PlannedMove, ...]
    waiting: int
    moving: int
    done: int
    dropped: int

    @property
    def is_finished(self) -> bool:
        return not self.start and not self.waiting and not self.moving


Lookup = Callable[[str, int], PartitionNow | None]


def state_of(move: PlannedMove, now: PartitionNow | None) -> MoveState:
    if now is None:
        return MoveState.DROPPED
    if now.is_moving:
        return MoveState.MOVING
    if now.replicas == move.after:
        return MoveState.DONE
    return MoveState.WAITING if now.replicas == move.before else MoveState.DROPPED


def next_step(
    moves: Sequence[PlannedMove],
    lookup: Lookup,
    *,
    limits: MoveLimits | None = None,
    others_in_flight: Iterable[PlannedMove] = (),
) -> ScheduleStep:
    """The moves to start, in the order of the plan, as far as the limits allow.

    ``others_in_flight`` are reassignments that the plan did not start; they count for the limits.
    A move that finds its source or destination busy does not hold back the moves behind it. Moves
    that only reorder replicas start when no move that copies data remains.
    """
    limits = limits or MoveLimits()
    sources: Counter[NodeId] = Counter()
    destinations: Counter[NodeId] = Counter()
    states: Counter[MoveState] = Counter()
    waiting: list[PlannedMove] = []
    in_flight = 0
    for other in others_in_flight:
        in_flight += 1
        _count(other, other.leader, sources, destinations)
    for move in moves:
        now = lookup(move.topic, move.partition)
        state = state_of(move, now)
        states[state] += 1
        if state is MoveState.MOVING:
            in_flight += 1
            _count(move, now.leader if now is not None else None, sources, destinations)
        elif state is MoveState.WAITING:
            waiting.append(move)
    copying = [move for move in waiting if move.adding or move.removing]
    if not copying and not states[MoveState.MOVING]:
        started = waiting[: limits.leaders_at_once]
    else:
        started = []
        for move in copying:
            if in_flight >= limits.in_cluster:
                break
            now = lookup(move.topic, move.partition)
            leader = now.leader if now is not None else None
            is_busy = any(destinations[n] >= limits.per_destination for n in move.adding)
            if leader is not None and move.adding:
                is_busy = is_busy or sources[leader] >= limits.per_source
            if not is_busy:
                started.append(move)
                in_flight += 1
                _count(move, leader, sources, destinations)
    return ScheduleStep(
        start=tuple(started),
        waiting=states[MoveState.WAITING] - len(started),
        moving=states[MoveState.MOVING],
        done=states[MoveState.DONE],
        dropped=states[MoveState.DROPPED],
    )


def _count(
    move: PlannedMove,
    leader: NodeId | None,
    sources: Counter[NodeId],
    destinations: Counter[NodeId],
) -> None:
    if leader is not None and move.adding:
        sources[leader] += 1
    destinations.update(move.adding)
