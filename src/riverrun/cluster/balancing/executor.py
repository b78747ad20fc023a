"""Advances the plans of the active controller, one step of one plan at a time.

All state of a plan is in the image. Here is only what saves work: plans are decoded once, a plan is
looked at again only after topics, brokers or settings have changed, and moves that are done are not
looked at again.
"""

from __future__ import annotations

from msgspec import Struct

from riverrun.cluster.balancing.execution import advance
from riverrun.cluster.balancing.plans import PlanReader
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.decision import Decision
from riverrun.metadata.image import Image


class _IdleImage(Struct, frozen=True):
    """The parts of an image in which a plan had nothing to do."""

    topics: object
    brokers: object
    configs: object

    def is_of(self, image: Image) -> bool:
        return (
            self.topics is image.topics_by_id
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

    def reset(self) -> None:
        """The controller changed: images that this node has decided on may not be committed."""
        self._idle, self._open = None, {}

    def due(self, image: Image) -> list[str]:
        """The plans that may have a step to do."""
        if self._idle is not None and self._idle.is_of(image):
            return []
        self._idle = _IdleImage(image.topics_by_id, image.brokers, image.configs)
        return [plan.id for plan in self._reader.running(image)]

    def advance(self, image: Image, plan_id: str, now_ms: int) -> Decision[None]:
        """The next step of a plan; nothing if it has ended."""
        running = self._reader.running(image)
        plan = next((one for one in running if one.id == plan_id), None)
        if plan is None:
            return Decision(response=None)
        step = advance(
            self._configs,
            image,
            plan,
            still_open=self._open.get(plan_id),
            others=[one for one in running if one.id != plan_id],
            limits=self._configs.effective(image, self._static).limits,
            now_ms=now_ms,
        )
        self._open = {one.id: self._open[one.id] for one in running if one.id in self._open}
        self._open[plan_id] = step.open
        if step.records:
            self._idle = None
        return Decision(records=step.records, response=None)
