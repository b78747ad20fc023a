"""The plans in an image. Each is a resource of settings of its own type, which no client lists.

The type has the number that Kafka calls UNKNOWN. Kafka's code keeps such resources through
snapshots and applies them to nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from riverrun.metadata.image import ConfigKey, ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import (
    HEADER,
    MOVES,
    RESULT,
    PlanHeader,
    PlanProgress,
    PlanTextInvalid,
    StoredPlan,
    decode_header,
    decode_plan,
    decode_progress,
)

Texts = Mapping[str, str]


def plan_ids(image: Image) -> list[str]:
    """The plans that run or have ended, the oldest first."""
    return [
        name
        for kind, name in image.configs
        if kind is ConfigType.PLAN and HEADER in image.configs[kind, name]
    ]


def plan_of(image: Image, plan_id: str) -> StoredPlan | None:
    """None if there is no such plan. One that only a newer version reads is an error."""
    texts = image.config(ConfigType.PLAN, plan_id)
    try:
        return decode_plan(plan_id, texts) if HEADER in texts else None
    except PlanTextInvalid as error:
        message = f"The plan {plan_id} was made by a newer version of riverrun: {error}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message) from None


def running_ids(image: Image) -> list[str]:
    """The plans that run, found without decoding them."""
    return [
        plan_id
        for plan_id in plan_ids(image)
        if RESULT not in image.configs[ConfigType.PLAN, plan_id]
    ]


def plans_without_moves(image: Image) -> list[StoredPlan]:
    """The plans that run or have ended, without those that only a newer version reads. Their moves
    are not decoded."""
    found: list[StoredPlan] = []
    for plan_id in plan_ids(image):
        with contextlib.suppress(PlanTextInvalid):
            found.append(decode_plan(plan_id, image.configs[ConfigType.PLAN, plan_id], moves=()))
    return found


def running_headers(image: Image) -> list[PlanHeader]:
    """The headers of the plans that run. One that only a newer version reads counts too: its moves
    are under way."""
    return [_header(image, plan_id) for plan_id in running_ids(image)]


def _header(image: Image, plan_id: str) -> PlanHeader:
    try:
        return decode_header(image.configs[ConfigType.PLAN, plan_id])
    except PlanTextInvalid:
        return PlanHeader(reason=f"the plan {plan_id} of a newer version")


def progress_of(image: Image, plan_id: str) -> PlanProgress:
    """All zero if only a newer version reads it."""
    try:
        return decode_progress(image.configs[ConfigType.PLAN, plan_id])
    except PlanTextInvalid:
        return PlanProgress()


def plan_record(plan_id: str, name: str, text: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=ConfigType.PLAN, resource_name=plan_id, name=name, value=text)


def removal(image: Image, plan_id: str, *, kept: Iterable[str] = ()) -> Iterator[ConfigRecord]:
    """Remove the texts of a plan."""
    keep = tuple(kept)
    for name in image.config(ConfigType.PLAN, plan_id):
        if name not in keep:
            yield plan_record(plan_id, name, None)


class PlanReader:
    """Decodes the plans of successive images. Moves are decoded once: they do not change."""

    def __init__(self) -> None:
        self._configs: Mapping[ConfigKey, Texts] | None = None
        self._plans: dict[str, tuple[Texts, StoredPlan]] = {}

    def plans(self, image: Image) -> list[StoredPlan]:
        """The plans of an image, the oldest first, without those that only a newer version reads.

        After a change of controller in a rolling upgrade such a plan waits for a newer controller.
        """
        if self._configs is not image.configs:
            found: dict[str, tuple[Texts, StoredPlan]] = {}
            for plan_id in plan_ids(image):
                texts = image.configs[ConfigType.PLAN, plan_id]
                known = self._plans.get(plan_id)
                if known is None or known[0] is not texts:
                    moves = self._moves(known, texts)
                    try:
                        known = (texts, decode_plan(plan_id, texts, moves=moves))
                    except PlanTextInvalid:
                        continue
                found[plan_id] = known
            self._plans, self._configs = found, image.configs
        return [plan for _, plan in self._plans.values()]

    def running(self, image: Image) -> list[StoredPlan]:
        return [plan for plan in self.plans(image) if plan.is_running]

    @staticmethod
    def _moves(
        known: tuple[Texts, StoredPlan] | None, texts: Texts
    ) -> tuple[PlannedMove, ...] | None:
        """The moves that are decoded already. A plan may be removed and submitted again."""
        if known is None:
            return None
        before = known[0]
        names = [name for name in texts if name.startswith(MOVES)]
        is_same = names == [name for name in before if name.startswith(MOVES)] and all(
            texts[name] is before[name] for name in names
        )
        return known[1].moves if is_same else None
