"""What nodes answered about their history, kept for the time when they do not answer.

A node holds its history in memory, so it is gone when the node is. Without these copies, the sum
over the nodes would fall for the time before a node stopped.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Final, NamedTuple

from msgspec import Struct

DAY_MS: Final = 86_400_000
SERIES_MAX: Final = 256
POINTS_MAX: Final = 500_000
"""Of all series of a user: 4 MB. The series that were asked for last are kept."""


class NodePoints(Struct, kw_only=True):
    """The answer of a node."""

    step_ms: int
    first_ms: int
    series: dict[str, list[float | None]]


class SeriesKey(NamedTuple):
    """A series that all nodes have. Topic and group are None for the nodes themselves."""

    name: str
    step_ms: int
    topic: str | None = None
    group: str | None = None


class KeptPoints(Struct, frozen=True):
    """Values at equal steps; NaN where there is none."""

    first_ms: int
    step_ms: int
    values: array[float]

    @property
    def end_ms(self) -> int:
        """The time after the last step."""
        return self.first_ms + len(self.values) * self.step_ms

    def known(self) -> list[tuple[int, float]]:
        """The moments with a value."""
        return [
            (self.first_ms + place * self.step_ms, value)
            for place, value in enumerate(self.values)
            if not isnan(value)
        ]


class HistoryBook:
    """Remembers the points of each node for a day, also over a restart of the node."""

    def __init__(self) -> None:
        self._kept: dict[SeriesKey, dict[int, KeptPoints]] = {}

    def add(self, key: SeriesKey, answers: Mapping[int, NodePoints]) -> dict[int, KeptPoints]:
        """Note the answers. Returns the points of all nodes that ever answered."""
        nodes = self._kept.pop(key, {})
        for node, answer in answers.items():
            new = _points(answer.first_ms, key.step_ms, answer.series.get(key.name, ()))
            nodes[node] = _merged(nodes[node], new) if node in nodes else new
        self._kept[key] = nodes  # the last place: it was used last
        self._limit()
        return nodes

    def _limit(self) -> None:
        total = sum(self._size(key) for key in self._kept)
        while len(self._kept) > SERIES_MAX or (total > POINTS_MAX and len(self._kept) > 1):
            oldest = next(iter(self._kept))
            total -= self._size(oldest)
            del self._kept[oldest]

    def _size(self, key: SeriesKey) -> int:
        return sum(len(points.values) for points in self._kept[key].values())


def _points(first_ms: int, step_ms: int, values: Sequence[float | None]) -> KeptPoints:
    return KeptPoints(
        first_ms, step_ms, array("d", (nan if value is None else value for value in values))
    )


def _merged(old: KeptPoints, new: KeptPoints) -> KeptPoints:
    """The newer points, with older ones where those have no value."""
    step_ms = new.step_ms
    if not new.values:
        return old
    if (new.first_ms - old.first_ms) % step_ms:
        return new
    end_ms = max(old.end_ms, new.end_ms)
    first_ms = max(min(old.first_ms, new.first_ms), end_ms - DAY_MS)
    values = array("d", [nan]) * ((end_ms - first_ms) // step_ms)
    for points in (old, new):
        for moment, value in points.known():
            if moment >= first_ms:
                values[(moment - first_ms) // step_ms] = value
    return KeptPoints(first_ms, step_ms, values)
