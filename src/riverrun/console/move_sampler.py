"""Rates of moves between the requests of one user, and the plans that moves belong to.

A page asks for the moves every few seconds. The rate is that of the last seconds, because a
throttled replica gets a fetch of up to 1 MiB only every few seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from riverrun.admin.balance.moves_report import MoveProgress, with_rates_since
from riverrun.model.ids import TopicPartition
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import StoredPlan

WINDOW_SECONDS: Final = 12.0
LOOKS_KEPT_MAX: Final = 16
GAP_SECONDS_MIN: Final = 1.0
"""Two looks that are closer do not give a rate."""
STALLED_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    moves: Sequence[MoveProgress]


class MoveSampler:
    """Remembers the last looks. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque(maxlen=LOOKS_KEPT_MAX)
        self._copied: dict[TopicPartition, tuple[int, float]] = {}
        """Bytes of each move, and since when it has this many."""
        self._plan_moves: dict[str, tuple[PlannedMove, ...]] = {}

    def add(self, moves: Sequence[MoveProgress], now: float) -> list[MoveProgress]:
        """The moves with their rates, which are None at the first look."""
        while self._looks and now - self._looks[0].at > WINDOW_SECONDS:
            self._looks.popleft()
        self._copied = {one.at: self._since(one, now) for one in moves}
        earlier = self._looks[0] if self._looks else None
        if not self._looks or now - self._looks[-1].at >= GAP_SECONDS_MIN:
            self._looks.append(_Look(now, moves))
        if earlier is None or now - earlier.at < GAP_SECONDS_MIN:
            return list(moves)
        return with_rates_since(earlier.moves, moves, now - earlier.at)

    def _since(self, move: MoveProgress, now: float) -> tuple[int, float]:
        known = self._copied.get(move.at)
        if known is not None and known[0] == move.bytes_done:
            return known
        return move.bytes_done, now

    def is_stalled(self, move: MoveProgress, now: float) -> bool:
        """Whether bytes are missing and none arrived lately."""
        _, since = self._copied.get(move.at, (0, now))
        return move.bytes_left > 0 and now - since >= STALLED_SECONDS

    def unknown_plans(self, running: Iterable[StoredPlan]) -> list[str]:
        """The plans whose moves are not known yet. Drops the moves of other plans."""
        ids = [plan.id for plan in running]
        self._plan_moves = {
            each: self._plan_moves[each] for each in ids if each in self._plan_moves
        }
        return [each for each in ids if each not in self._plan_moves]

    def learn(self, plan_moves: dict[str, tuple[PlannedMove, ...]]) -> None:
        self._plan_moves |= plan_moves

    def moves_of(self, plan: StoredPlan) -> tuple[PlannedMove, ...] | None:
        """All moves of a plan that runs; None if they are not known."""
        return self._plan_moves.get(plan.id)

    def planned(
        self, running: Iterable[StoredPlan]
    ) -> dict[tuple[str, int], tuple[str, PlannedMove]]:
        """The partitions that plans move now, with the id of the plan and its move."""
        return {
            (moves[number].topic, moves[number].partition): (plan.id, moves[number])
            for plan in running
            if (moves := self._plan_moves.get(plan.id))
            for number in plan.progress.moving
            if number < len(moves)
        }
