"""Shrinks a failing schedule of faults by delta debugging.

Leave out halves, then quarters, then single faults, as long as the run still fails in the same way.
Then round the times and shorten the durations of the remaining faults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from riverrun.simulation.faults.schedule import Fault

Fails = Callable[[Sequence[Fault]], bool]


def shrink(faults: Sequence[Fault], fails: Fails, *, runs_max: int = 60) -> tuple[Fault, ...]:
    """The smallest schedule found that still fails. ``faults`` itself must fail."""
    attempts = _Attempts(fails, runs_max)
    smallest = _leave_out(list(faults), attempts)
    return tuple(_simplify(smallest, attempts))


class _Attempts:
    """Limits the number of runs."""

    def __init__(self, fails: Fails, runs_max: int) -> None:
        self._fails = fails
        self._left = runs_max

    def still_fails(self, faults: Sequence[Fault]) -> bool:
        if self._left == 0:
            return False
        self._left -= 1
        return self._fails(faults)


def _leave_out(faults: list[Fault], attempts: _Attempts) -> list[Fault]:
    size = max(1, len(faults) // 2)
    while faults:
        shorter: list[Fault] | None = None
        for start in range(0, len(faults), size):
            candidate = faults[:start] + faults[start + size :]
            if attempts.still_fails(candidate):
                shorter = candidate
                break
        if shorter is not None:
            faults = shorter
            size = min(size, max(1, len(faults) // 2))
        elif size == 1:
            return faults
        else:
            size //= 2
    return faults


def _simplify(faults: list[Fault], attempts: _Attempts) -> list[Fault]:
    """Round times and shorten durations of one fault after another."""
    for place, fault in enumerate(faults):
        for simpler in (
            dataclasses.replace(fault, start=round(fault.start, 1), seconds=0.5),
            dataclasses.replace(fault, seconds=0.5),
            dataclasses.replace(fault, start=round(fault.start, 1)),
        ):
            if simpler == fault:
                continue
            candidate = [*faults[:place], simpler, *faults[place + 1 :]]
            if attempts.still_fails(candidate):
                faults = candidate
                break
    return faults
