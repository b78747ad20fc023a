"""Needs for which the planner found nothing to move, and when to ask it again.

A rack rule may be impossible to mend, a disk may be full, or a partition may be in motion. Such a
need must neither run the planner at every check nor keep other needs waiting. It is left out until
the cluster has changed, or a long pause has passed.

| since the attempt | planned again |
|---|---|
| other brokers are active, or brokers have other modes, racks or capacities | at the next check |
| only topics have changed | after a pause, doubled by each attempt in a row |
| nothing has changed | after the longest pause |

Times are seconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from riverrun.cluster.balancing.needs import PlanNeed
from riverrun.cluster.brokers.modes import BrokerMode, mode_of
from riverrun.cluster.configs.node_configs import CLUSTER
from riverrun.cluster.partitions.placement import PlacementState, availability
from riverrun.metadata.image import ConfigType, Image
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability
from riverrun.placement.planner.plan import Purpose

PAUSE_SECONDS: Final = 60.0
PAUSE_SECONDS_MAX: Final = 3600.0
CAPACITY: Final = "broker.capacity."
DISK_CHANGE_MIN: Final = 0.1
"""A smaller change of a disk's size is that of a file system that others share."""


class _Broker(Struct, frozen=True, kw_only=True):
    """What makes a broker a better or worse place for replicas."""

    availability: Availability
    mode: BrokerMode
    rack: str | None
    capacities: Mapping[str, str]
    """The declared ones."""


class _Attempt(Struct, frozen=True, kw_only=True):
    causes: tuple[str, ...]
    at: float
    count: int
    topics: object
    brokers: Mapping[NodeId, _Broker]
    disks: Mapping[NodeId, int]

    def is_of(self, brokers: Mapping[NodeId, _Broker], disks: Mapping[NodeId, int]) -> bool:
        """Whether the brokers are those of the attempt."""
        return self.brokers == brokers and all(
            abs(disks[node] - size) <= size * DISK_CHANGE_MIN
            for node, size in self.disks.items()
            if node in disks
        )


def _brokers(image: Image) -> dict[NodeId, _Broker]:
    defaults = _capacities(image, CLUSTER)
    return {
        node: _Broker(
            availability=availability(image, broker),
            mode=mode_of(image, node),
            rack=broker.rack,
            capacities={**defaults, **_capacities(image, str(node))},
        )
        for node, broker in image.brokers.items()
    }


def _capacities(image: Image, name: str) -> dict[str, str]:
    texts = image.config(ConfigType.BROKER, name)
    return {name: text for name, text in texts.items() if name.startswith(CAPACITY)}


class FutileNeeds:
    def __init__(self, state: PlacementState) -> None:
        self._state = state
        self._attempts: dict[Purpose, _Attempt] = {}

    def note(self, need: PlanNeed, image: Image, now: float, *, is_empty: bool) -> None:
        """Note whether the plan for a need was empty."""
        before = self._attempts.pop(need.purpose, None)
        if is_empty:
            brokers, disks = _brokers(image), self._disks()
            is_same = (
                before is not None and before.causes == need.causes and before.is_of(brokers, disks)
            )
            self._attempts[need.purpose] = _Attempt(
                causes=need.causes,
                at=now,
                count=before.count + 1 if before is not None and is_same else 0,
                topics=image.topics_by_id,
                brokers=brokers,
                disks=disks,
            )

    def contains(self, need: PlanNeed, image: Image, now: float) -> bool:
        """Whether another plan for this need would most likely be empty too."""
        last = self._attempts.get(need.purpose)
        if last is None or not need.causes:
            return False  # a need without causes is held back: nothing is planned for it
        if any(cause not in last.causes for cause in need.causes):
            return False
        if not last.is_of(_brokers(image), self._disks()):
            return False
        pause = PAUSE_SECONDS_MAX
        if last.topics is not image.topics_by_id:
            pause = min(PAUSE_SECONDS * 2**last.count, pause)
        return now - last.at < pause

    def _disks(self) -> dict[NodeId, int]:
        loads = self._state.loads
        return {node: one.disk_capacity for node, one in loads.items() if one.disk_capacity}
