"""Advances the plans of the active controller, one step of one plan at a time.

All state of a plan is in the image. Here is only what saves work: plans are decoded once, a plan is
looked at again only after topics, brokers or settings have changed, and moves that are done are not
looked at again. While a broker is away, plans are also looked at from time to time: their moves do
not wait for it without a limit. That limit does not hold in the first minute of a controller: the
brokers may not have registered with it yet.
"""

from __future__ import annotations

import math
from typing import Final

import structlog
from msgspec import Struct

from riverrun.cluster.balancing.destinations import AWAY_MS_MAX
from riverrun.cluster.balancing.execution import advance
from riverrun.cluster.balancing.plans import PlanReader
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import Image

LOOK_EVERY_MS: Final = 10_000
"""How often plans are looked at while a broker is away."""
SETTLING_MS: Final = 60_000
"""How long a new controller lets brokers register before it gives up moves to them."""
REASONS_LOGGED_MAX: Final = 5

log = structlog.get_logger("riverrun.controller")


class _IdleImage(Struct, frozen=True):
    """The parts of an image in which a plan had nothing to do, and when."""

    topics: object
    brokers: object
    configs: object
    until_ms: float

    def holds(self, image: Image, now_ms: int) -> bool:
        return (
            now_ms < self.until_ms
            and self.topics is image.topics_by_id
            and self.brokers is image.brokers
            and self.configs is image.configs
        )


class PlanExecutor:
    def __init__(self, configs: Configs) -> None:
        self._configs = configs
        self._static = BalanceSettings.from_texts(configs.given)
        self._reader = PlanReader()
        self._idle: _IdleImage | None = None
        self._open: dict[str, tuple[int, ...]] = {}
        """The moves of each plan that are not done, as of the last step."""
        self._active_since_ms: int | None = None

    def reset(self, now_ms: int | None = None) -> None:
        """The controller changed: images that this node has decided on may not be committed.
        ``now_ms``: this node became the active controller now."""
        self._idle, self._open = None, {}
        self._active_since_ms = now_ms

    def due(self, image: Image, now_ms: int) -> list[str]:
        """The plans that may have a step to do, repairs first."""
        if self._idle is not None and self._idle.holds(image, now_ms):
            return []
        is_any_away = any(one.is_fenced for one in image.brokers.values())
        until_ms = now_ms + LOOK_EVERY_MS if is_any_away else math.inf
        self._idle = _IdleImage(image.topics_by_id, image.brokers, image.configs, until_ms)
        running = self._reader.running(image)
        # Repairs take the places of moves that have ended before other plans do.
        return [one.id for one in sorted(running, key=lambda one: not one.header.is_repair)]

    def advance(self, image: Image, plan_id: str, now_ms: int) -> Decision[None]:
        """The next step of a plan; nothing if it has ended."""
        running = self._reader.running(image)
        plan = next((one for one in running if one.id == plan_id), None)
        if plan is None:
            return Decision(response=None)
        settings = self._configs.effective(image, self._static)
        step = advance(
            self._configs,
            image,
            plan,
            still_open=self._open.get(plan_id),
            others=[one for one in running if one.id != plan_id],
            limits=settings.limits,
            now_ms=now_ms,
            away_ms_max=self._away_ms_max(settings, now_ms),
        )
        if step.dropped:
            reasons = list(dict.fromkeys(step.dropped.values()))[:REASONS_LOGGED_MAX]
            log.warning(
                "moves of a plan are dropped",
                plan=plan_id, moves=len(step.dropped), reasons=reasons,
            )  # fmt: skip
        self._open = {one.id: self._open[one.id] for one in running if one.id in self._open}
        self._open[plan_id] = step.open
        if step.records:
            self._idle = None
        return Decision(records=step.records, response=None)

    def _away_ms_max(self, settings: BalanceSettings, now_ms: int) -> float:
        since_ms = self._active_since_ms
        # The wall clock may have been set back since.
        if since_ms is not None and abs(now_ms - since_ms) < SETTLING_MS:
            return math.inf
        return min(settings.healing_timeout_ms, AWAY_MS_MAX)
