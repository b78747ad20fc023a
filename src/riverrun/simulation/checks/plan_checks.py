"""Checks of the plans in an image: a throttle belongs to a plan that runs.

The simulated clients set no throttles themselves. So an entry of a list or a rate that no plan
accounts for was left behind.
"""

from __future__ import annotations

from collections.abc import Mapping

from riverrun.cluster.balancing.submission import running_plans
from riverrun.cluster.balancing.throttling import (
    FOLLOWER_LIST,
    FOLLOWER_RATE,
    LEADER_LIST,
    LEADER_RATE,
)
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.ids import NodeId


def throttle_left_behind(image: Image) -> str | None:
    """What is wrong with the throttles of an image; None if nothing is."""
    plans = running_plans(image)
    entries: dict[tuple[str, str, str], None] = {}
    for plan in plans:
        for topic, ours in plan.throttled.items():
            entries.update(dict.fromkeys((topic, LEADER_LIST, one) for one in ours.leaders))
            entries.update(dict.fromkeys((topic, FOLLOWER_LIST, one) for one in ours.followers))
    rated = {node: None for plan in plans for node in plan.rates}
    for (kind, resource), texts in image.configs.items():
        if kind is ConfigType.TOPIC:
            for name in (LEADER_LIST, FOLLOWER_LIST):
                for entry in filter(None, texts.get(name, "").split(",")):
                    if (resource, name, entry) not in entries:
                        return f"{resource}: {name} has {entry}, which no plan has added"
        elif kind is ConfigType.BROKER and _is_left(resource, texts, rated):
            return f"broker {resource} has a throttled rate, and no plan has set it"
    return None


def _is_left(broker: str, texts: Mapping[str, str], rated: Mapping[NodeId, None]) -> bool:
    is_rated = LEADER_RATE in texts or FOLLOWER_RATE in texts
    return is_rated and (not broker or NodeId(int(broker)) not in rated)


def running_plan(image: Image) -> str | None:
    """A plan that runs, with its progress; None if all have ended."""
    for plan in running_plans(image):
        return f"plan {plan.id} has not ended: {plan.progress}, dropped {dict(plan.dropped)}"
    return None
