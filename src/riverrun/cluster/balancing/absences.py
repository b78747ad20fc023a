"""Since when brokers are away, in the metadata: stored like a plan.

The active controller stores when it first saw that a broker is away, so the next controller goes on
counting. It is a time of the wall clock, which only a new controller reads.
"""

from __future__ import annotations

from riverrun.cluster.balancing.plans import plan_record
from riverrun.metadata.image import ConfigType, Image
from riverrun.metadata.records import ConfigRecord
from riverrun.model.ids import NodeId
from riverrun.placement.planner.stored_plan import AWAY


def away_since_ms(image: Image) -> dict[NodeId, int]:
    texts = image.config(ConfigType.PLAN, AWAY)
    return {NodeId(int(name)): int(text) for name, text in texts.items() if text.isdecimal()}


def absence_records(image: Image, now_ms: int) -> list[ConfigRecord]:
    """Store the time for brokers that are newly away, and remove it for those that are back."""
    known = image.config(ConfigType.PLAN, AWAY)
    away = {str(one.id): None for one in image.brokers.values() if one.is_fenced}
    return [
        *[plan_record(AWAY, name, str(now_ms)) for name in away if name not in known],
        *[plan_record(AWAY, name, None) for name in known if name not in away],
    ]
