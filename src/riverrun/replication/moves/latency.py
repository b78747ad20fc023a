"""Whether produce requests became much slower since reassignments began.

The 99th percentile comes from the histogram of produce requests that the metrics have anyway, by
the difference between two moments. While no reassignment is in progress, its median over the last
minutes is the baseline. A short window with few requests says nothing, and a percentile below half
a second is never too slow, so noise does not cancel a move. Without a baseline nothing is too slow:
requests may be as slow as they always are.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

from riverrun.ports.metrics import Histogram

WINDOW_SECONDS: Final = 10.0
REQUESTS_MIN: Final = 50
"""Requests in a window, without which it is ignored."""
BASELINE_WINDOWS: Final = 30
FLOOR_SECONDS: Final = 0.5
QUANTILE: Final = 0.99


def quantile(bounds: tuple[float, ...], counts: list[int]) -> float:
    """The upper bound of the bucket with the quantile."""
    wanted = sum(counts) * QUANTILE
    for bound, count in zip(bounds, counts, strict=False):
        wanted -= count
        if wanted <= 0:
            return bound
    return float("inf")


class ProduceLatency:
    """Call ``check`` regularly."""

    def __init__(self, produces: Histogram) -> None:
        self._produces = produces
        self._began: float | None = None
        self._counts: list[int] = []
        self._baseline: deque[float] = deque(maxlen=BASELINE_WINDOWS)
        self._slow_since: float | None = None

    def check(self, now: float, *, is_moving: bool, multiple: float, limit_seconds: float) -> bool:
        """Whether produce requests are too slow for the limit, during reassignments."""
        counts = self._produces.counts
        if self._began is None:
            self._began, self._counts = now, list(counts)
        if not is_moving:
            self._slow_since = None
        if now - self._began < WINDOW_SECONDS:
            return False
        window = [new - old for new, old in zip(counts, self._counts, strict=True)]
        began, self._began, self._counts = self._began, now, list(counts)
        if sum(window) < REQUESTS_MIN:
            # Requests that take longer than the window are not counted yet.
            return False
        found = quantile(self._produces.bounds, window)
        if not is_moving:
            self._baseline.append(found)
            return False
        if not self._baseline or found <= max(
            FLOOR_SECONDS, multiple * statistics.median(self._baseline)
        ):
            self._slow_since = None
            return False
        if self._slow_since is None:
            self._slow_since = began
        if now - self._slow_since < limit_seconds:
            return False
        self._slow_since = None
        return True
