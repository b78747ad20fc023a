"""Values over time, one for each step of ten seconds, in a fixed amount of memory.

Steps are numbered by the wall clock, so the series of several nodes can be added up. A step without
a value is NaN. A ring grows as it fills, and then overwrites its oldest value.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Final

STEP_SECONDS: Final = 10
STEP_MS: Final = STEP_SECONDS * 1000
HOURS_MAX: Final = 24
DAY_STEPS: Final = HOURS_MAX * 3600 // STEP_SECONDS
FINE_STEPS: Final = 2 * 3600 // STEP_SECONDS
"""Topics and groups have the full resolution for two hours."""
COARSE_STEPS: Final = 6
"""Before that they have one value for each minute. All topics and groups in full resolution would
take 35 MB."""
COARSE_COUNT: Final = DAY_STEPS // COARSE_STEPS
NOTHING: Final = math.nan

Join = Callable[[Sequence[float]], float]
"""Makes one value of several."""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class SeriesRing:
    """The newest ``capacity`` values of one series, in four bytes each."""

    __slots__ = ("_capacity", "_next", "_origin", "_values")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values = array("f")
        self._origin = 0
        """The step at position 0 when the ring began."""
        self._next = 0

    @property
    def size_bytes(self) -> int:
        return len(self._values) * self._values.itemsize

    def put(self, step: int, value: float) -> None:
        """Set the value of the next step, or of a later one. Earlier steps cannot be changed."""
        if step < self._next:
            return
        missing = step - self._next
        if not self._values or missing >= self._capacity:
            self._values = array("f")
            self._origin = self._next = step
            missing = 0
        if missing:
            self._skip(missing)
        position = (self._next - self._origin) % self._capacity
        if position == len(self._values):
            self._values.append(value)
        else:
            self._values[position] = value
        self._next += 1

    def _skip(self, count: int) -> None:
        """Add steps without values. The machine may have slept for hours."""
        while count:
            position = (self._next - self._origin) % self._capacity
            known = len(self._values)
            room = (self._capacity if position == known else known) - position
            part = min(count, room)
            self._values[position : position + part] = array("f", [NOTHING]) * part
            self._next += part
            count -= part

    def values(self, start: int, end: int) -> array[float]:
        """The values of [start, end). NaN where a step has no value, or is not known any more."""
        first = min(max(start, self._next - len(self._values)), end)
        last = max(min(end, self._next), first)
        found = array("f", [NOTHING]) * (first - start)
        while first < last:
            position = (first - self._origin) % self._capacity
            part = self._values[position : position + last - first]
            found += part
            first += len(part)
        return found + array("f", [NOTHING]) * (end - start - len(found))

    def read(self, start: int, end: int, stride: int, join: Join) -> list[float | None]:
        """The values of [start, end), each of ``stride`` steps joined."""
        values = self.values(start, end).tolist()
        if stride == 1:
            return [None if math.isnan(value) else value for value in values]
        found: list[float | None] = []
        for at in range(0, len(values), stride):
            known = [value for value in values[at : at + stride] if not math.isnan(value)]
            found.append(join(known) if known else None)
        return found


class TieredSeries:
    """Two hours in full resolution, and a day with the mean of each minute."""

    __slots__ = ("_coarse", "_fine", "_minute", "_sum", "_values")

    def __init__(self) -> None:
        self._fine = SeriesRing(FINE_STEPS)
        self._coarse = SeriesRing(COARSE_COUNT)
        self._minute = -1
        self._sum = 0.0
        self._values = 0

    @property
    def size_bytes(self) -> int:
        return self._fine.size_bytes + self._coarse.size_bytes

    def put(self, step: int, value: float) -> None:
        self._fine.put(step, value)
        minute = step // COARSE_STEPS
        if minute != self._minute:
            if self._values:
                self._coarse.put(self._minute, self._sum / self._values)
            self._minute, self._sum, self._values = minute, 0.0, 0
        self._sum += value
        self._values += 1

    def read(self, start: int, end: int, stride: int) -> list[float | None]:
        """As ``SeriesRing.read``, with the mean. Minutes come from the coarse values; all three are
        multiples of a minute then."""
        if stride % COARSE_STEPS:
            return self._fine.read(start, end, stride, mean)
        parts = COARSE_STEPS
        return self._coarse.read(start // parts, end // parts, stride // parts, mean)
