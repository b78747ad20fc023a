"""Remembers how the lag of groups changed between the requests of a user."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

GROUPS_MAX: Final = 500
SAMPLES_MAX: Final = 16
WINDOW_SECONDS: Final = 60.0
GAP_SECONDS_MIN: Final = 1.0


class LagSample(NamedTuple):
    at: float
    lag: int


class LagBook:
    """Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[LagSample]] = {}

    def add(self, group: str, lag: int, now: float) -> float | None:
        """Note a lag. Returns the seconds until the group has caught up if it goes on like this;
        None if it does not catch up, or while that is unknown."""
        samples = self._samples.pop(group, None) or deque(maxlen=SAMPLES_MAX)
        if len(self._samples) >= GROUPS_MAX:
            del self._samples[next(iter(self._samples))]
        self._samples[group] = samples
        while samples and now - samples[0].at > WINDOW_SECONDS:
            samples.popleft()
        if not samples or now - samples[-1].at >= GAP_SECONDS_MIN:
            samples.append(LagSample(now, lag))
        first = samples[0]
        if lag == 0:
            return 0.0
        if now - first.at < GAP_SECONDS_MIN or first.lag <= lag:
            return None
        return lag * (now - first.at) / (first.lag - lag)
