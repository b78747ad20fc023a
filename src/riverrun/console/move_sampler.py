"""Rates of moves between the requests of one user, and the plans that moves belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from riverrun.admin.balance.moves_report import MoveProgress, MoveRates
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import StoredPlan

STALLED_SECONDS: Final = 20.0


class MoveSampler:
    """Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._rates = MoveRates()
        self._plan_moves: dict[str, tuple[PlannedMove, ...]] = {}

    def add(self, moves: Sequence[MoveProgress], now: float) -> list[MoveProgress]:
        """The moves with their rates, which are None at the first look."""
        return self._rates.add(moves, now)

    @staticmethod
    def is_stalled(move: MoveProgress) -> bool:
        """Whether bytes are missing and none arrived lately."""
        return move.idle_seconds >= STALLED_SECONDS

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
