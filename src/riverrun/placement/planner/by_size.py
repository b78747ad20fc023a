"""Replicas of one broker by size: the one nearest to a wanted size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable


class ReplicasBySize:
    """Gives each slot at most once.

    Places of slots that were taken or did not fit are skipped by links that point past them and are
    shortened when they are followed. So a search costs O(log n), also if all slots near the wanted
    size are used up.
    """

    def __init__(self, replicas: Iterable[tuple[float, int]]) -> None:
        """``replicas`` are sizes and slots."""
        ordered = sorted(replicas)
        self._slots = [slot for _, slot in ordered]
        self._sizes = [size for size, _ in ordered]
        self._has_unfit = False
        self._taken: set[int] = set()
        self._after: dict[int, int] = {}
        self._before: dict[int, int] = {}

    def restart(self) -> None:
        """Try the slots again that did not fit."""
        if self._has_unfit:
            kept = [at for at, slot in enumerate(self._slots) if slot not in self._taken]
            self._slots = [self._slots[at] for at in kept]
            self._sizes = [self._sizes[at] for at in kept]
            self._has_unfit = False
            self._taken.clear()
            self._after.clear()
            self._before.clear()

    def take(self, wanted: float, fits: Callable[[int], bool]) -> tuple[int, float] | None:
        """The slot nearest to the wanted size that fits, and its size; of equals, the first slot.

        One that does not fit is not tried again until ``restart``.
        """
        while (place := self._nearest(wanted)) is not None:
            self._after[place] = place + 1
            self._before[place] = place - 1
            slot = self._slots[place]
            if fits(slot):
                self._taken.add(slot)
                return slot, self._sizes[place]
            self._has_unfit = True
        return None

    def _nearest(self, wanted: float) -> int | None:
        sizes = self._sizes
        middle = bisect_left(sizes, wanted)
        above = _end(self._after, middle)
        below = _end(self._before, middle - 1)
        is_larger = above < len(sizes)
        if below >= 0 and (not is_larger or sizes[above] - wanted > wanted - sizes[below]):
            return _end(self._after, bisect_left(sizes, sizes[below], 0, below))
        return above if is_larger else None


def _end(links: dict[int, int], start: int) -> int:
    """The first place that has no link, with all links on the way set to it."""
    end = start
    while end in links:
        end = links[end]
    while start != end:
        links[start], start = end, links[start]
    return end
