"""Needs for which the planner found nothing to move, and when to ask it again.

A rack rule may be impossible to mend, a disk may be full, or a partition may be in motion. Such a
need must neither run the planner at every check nor keep other needs waiting. It is left out until
the cluster has changed, or a long pause has passed. In a cluster that changes all the time, each
attempt without a result doubles the pause.

Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from riverrun.cluster.balancing.needs import PlanNeed
from riverrun.cluster.brokers.modes import mode_texts
from riverrun.metadata.image import Image
from riverrun.placement.planner.plan import Purpose

PAUSE_SECONDS: Final = 60.0
PAUSE_SECONDS_MAX: Final = 3600.0


class _Attempt(Struct, frozen=True, kw_only=True):
    causes: tuple[str, ...]
    at: float
    count: int
    topics: object
    brokers: object
    modes: dict[str, str]

    def is_of(self, image: Image) -> bool:
        return (
            self.topics is image.topics_by_id
            and self.brokers is image.brokers
            and self.modes == mode_texts(image)
        )


class FutileNeeds:
    def __init__(self) -> None:
        self._attempts: dict[Purpose, _Attempt] = {}

    def note(self, need: PlanNeed, image: Image, now: float, *, is_empty: bool) -> None:
        """Note whether the plan for a need was empty."""
        before = self._attempts.pop(need.purpose, None)
        if is_empty:
            is_same = before is not None and before.causes == need.causes
            self._attempts[need.purpose] = _Attempt(
                causes=need.causes,
                at=now,
                count=before.count + 1 if before is not None and is_same else 0,
                topics=image.topics_by_id,
                brokers=image.brokers,
                modes=mode_texts(image),
            )

    def contains(self, need: PlanNeed, image: Image, now: float) -> bool:
        """Whether another plan for this need would most likely be empty too."""
        last = self._attempts.get(need.purpose)
        if last is None or not need.causes:
            return False  # a need without causes is held back: nothing is planned for it
        if any(cause not in last.causes for cause in need.causes):
            return False
        pause = PAUSE_SECONDS_MAX
        if not last.is_of(image):
            pause = min(PAUSE_SECONDS * 2**last.count, pause)
        return now - last.at < pause
