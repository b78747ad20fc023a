"""Even heirs, so that the loss of any one broker spreads its leaderships evenly.

The heir of a partition is the replica that leads next: its first follower that may lead. Partitions
that the plan changes anyway get the heir with the lowest load after the loss of their leader. Other
partitions are reordered only to relieve heirs far above the mean. No data moves.
"""

from __future__ import annotations

from array import array
from math import inf
from typing import Final

from riverrun.placement.planner.board import EPSILON, Board
from riverrun.placement.planner.layout import MISSING
from riverrun.placement.planner.leadership import LeaderPlan

UNEVEN_ABOVE: Final = 1.2
"""Unchanged partitions are reordered only if a loss gives a broker more than this multiple of its
share of leaderships."""
UNEVEN_LEADERS: Final = 2
"""And at least as many leaderships above its share: small clusters cannot be more even."""
PASSES_MAX: Final = 4
"""How often the partitions of a leader are looked at."""
REORDERED_MAX: Final = 10_000
"""Once a plan reorders this many unchanged partitions, it leaves those of other leaders alone.
Each is a metadata change."""


class HeirPlan:
    """Chooses the heirs of partitions for planned replicas and leaders."""

    def __init__(self, board: Board, leaders: LeaderPlan) -> None:
        self._board = board
        self._leaders = leaders.leaders
        self._able = [at for at, may_lead in enumerate(leaders.may_lead) if may_lead]
        self._weights = [one.weight for one in board.layout.brokers]
        self._steps = [*(1 / weight for weight in self._weights), 1.0]
        """What one more leadership adds to a broker's load."""
        self._led = [array("i") for _ in board.layout.brokers]
        for partition, leader in enumerate(self._leaders):
            if leader != MISSING:
                self._led[leader].append(partition)
        self._is_changed = self._changed()
        self._reorders_left = REORDERED_MAX
        self.heirs: dict[int, int] = {}
        """The heir of each partition that needs another order of its followers."""

    def _changed(self) -> bytearray:
        board, layout = self._board, self._board.layout
        changed = bytearray(layout.partitions)
        if board.replicas != layout.replicas:
            moves = zip(layout.replicas, board.replicas, layout.partition_of, strict=True)
            for partition in [partition for old, new, partition in moves if old != new]:
                changed[partition] = 1
        for partition, (start, leader) in enumerate(
            zip(layout.starts[:-1], self._leaders, strict=True)
        ):
            if leader not in (MISSING, board.replicas[start]):
                changed[partition] = 1
        return changed

    def spread(self, *, reorder_others: bool) -> None:
        layout = self._board.layout
        whole = sum(map(len, self._led))
        weight = sum(self._weights[at] for at in self._able)
        leads = [inf] * (len(layout.brokers) + 1)  # the last is for MISSING
        for broker in self._able:
            leads[broker] = len(self._led[broker]) / self._weights[broker]
        for lost in self._able:
            others = weight - self._weights[lost]
            if others <= 0 or not self._led[lost]:
                continue
            loads = leads[:]
            loads[lost] = inf
            heirs = self._heirs_now(lost, loads)
            before = list(heirs.values())
            mean = whole / others
            changed = [one for one in heirs if self._is_changed[one]]
            self._relieve(changed, heirs, loads, above=0.0)
            if reorder_others and self._reorders_left > 0 and self._is_uneven(heirs, loads, mean):
                self._relieve(list(heirs), heirs, loads, above=mean * UNEVEN_ABOVE)
            for partition, old, new in zip(heirs, before, heirs.values(), strict=True):
                if old != new:
                    self.heirs[partition] = new
                    self._reorders_left -= not self._is_changed[partition]

    def _is_uneven(self, heirs: dict[int, int], loads: list[float], mean: float) -> bool:
        return any(
            loads[heir] > max(mean * UNEVEN_ABOVE, mean + UNEVEN_LEADERS * self._steps[heir])
            for heir in dict.fromkeys(heirs.values())
        )

    def _heirs_now(self, lost: int, loads: list[float]) -> dict[int, int]:
        """The heirs that may be changed. All heirs are added to the loads."""
        replicas, starts, steps = self._board.replicas, self._board.layout.starts, self._steps
        pinned = self._board.layout.is_pinned
        heirs: dict[int, int] = {}
        for partition in self._led[lost]:
            for broker in replicas[starts[partition] : starts[partition + 1]]:
                if loads[broker] < inf:
                    loads[broker] += steps[broker]
                    if not pinned[partition]:
                        heirs[partition] = broker
                    break
        return heirs

    def _relieve(
        self, partitions: list[int], heirs: dict[int, int], loads: list[float], *, above: float
    ) -> None:
        """Replace heirs whose load is above the limit by others, if that evens the two."""
        replicas, starts, steps = self._board.replicas, self._board.layout.starts, self._steps
        for _ in range(PASSES_MAX):
            is_done = True
            for partition in partitions:
                heir = heirs[partition]
                least = loads[heir]
                if least <= above:
                    continue
                least -= EPSILON
                best = heir
                for broker in replicas[starts[partition] : starts[partition + 1]]:
                    load = loads[broker] + steps[broker]
                    if load < least:
                        best, least = broker, load
                if best != heir:
                    loads[heir] -= steps[heir]
                    loads[best] += steps[best]
                    heirs[partition] = best
                    is_done = False
            if is_done:
                return
