"""When the controller plans by itself: the triggers, from the image and a little soft state.

| trigger | plan |
|---|---|
| a broker is away for ``self.healing.timeout`` | repair: its replicas are replaced |
| a broker is decommissioned and still holds replicas | repair: they move away |
| replicas share a rack, and other racks have brokers | repair: they are spread |
| a broker joins, or holds far less than its share | balance |
| replicas, leaders or disk are uneven (``balance.threshold``) | balance |

Balancing waits while a broker with replicas is away, or one is in maintenance: it will come back.
It also waits for the cool-down after a plan. Repairs do not. While a plan runs, only brokers that
are away are replaced, by a plan beside it: all other needs wait for its end. A broker that a
running repair replaces already is left to it. If more than a third
of the brokers are away, nothing is healed, because the network is more likely at fault than each of
them.

The times since when brokers are away are in the metadata (``absences.py``), so a new controller
goes on counting.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from riverrun.cluster.balancing.absences import away_since_ms
from riverrun.cluster.balancing.settings import BalanceSettings
from riverrun.cluster.brokers.modes import BrokerMode, mode_of
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.placement import (
    PlacementState,
    availability,
    placement_broker,
    placement_settings,
)
from riverrun.metadata.image import Image, TopicImage
from riverrun.model.ids import NodeId
from riverrun.model.settings import SECOND_MS
from riverrun.placement.brokers import Availability, PlacementBroker
from riverrun.placement.planner.fairness import BalanceFigures, Fairness, fairness
from riverrun.placement.planner.plan import Purpose
from riverrun.placement.planner.stored_plan import PlanHeader
from riverrun.placement.planner.triggers import BalanceTrigger, brokers_to_heal

JOINED_SHARE: Final = 0.5
"""A broker with less than this part of its share has joined, or was emptied."""
SHARE_MIN: Final = 4.0
"""With fewer replicas per broker than this, such a difference means nothing."""
PARTITIONS_PER_STEP: Final = 1000

_EVEN: Final = Fairness(max_over_mean=1.0, min_over_mean=1.0, variation=0.0, spread=0.0)


class PlanNeed(Struct, frozen=True, kw_only=True):
    """Why to plan. ``gone`` brokers are replaced. ``held_back``: why nothing is healed."""

    purpose: Purpose
    causes: tuple[str, ...]
    """The triggers. Two needs with the same causes are the same need."""
    reasons: tuple[str, ...]
    """The same for people, with figures that change from check to check."""
    gone: tuple[NodeId, ...] = ()
    draining: tuple[NodeId, ...] = ()
    held_back: str | None = None
    is_beside_plans: bool = False
    """Whether other plans run. Only replicas on ``gone`` brokers are moved then."""

    @property
    def command(self) -> str:
        """What a person runs instead. A node that is away for good is decommissioned."""
        leaving = (*self.gone, *self.draining)
        words = f"decommission {leaving[0]}" if leaving else "balance"
        return f"riverrun cluster {words}"


class NeedWatch:
    """The soft state of the triggers. Times are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._away_since: dict[NodeId, float] = {}
        self.last_end = -math.inf
        """When the last plan ended."""
        self._is_balancing = False
        """Whether a plan to balance has run since the cluster was last even."""
        self._had_plan = False

    def needs(
        self,
        configs: Configs,
        image: Image,
        placement: PlacementState,
        settings: BalanceSettings,
        *,
        now: float,
        now_ms: int,
        running: Sequence[PlanHeader] = (),
        broken_racks: int = 0,
    ) -> tuple[PlanNeed, ...]:
        """The plans that the cluster needs now, besides those that run; the most urgent first."""
        self._observe(image, now, now_ms, is_plan_running=bool(running))
        placement.totals.update(image)
        defaults = placement_settings(configs, image)
        brokers = [
            placement_broker(image, one, defaults, placement) for one in image.brokers.values()
        ]
        # A broker without replicas has nothing to replace and nothing to come back for.
        brokers = [one for one in brokers if one.replicas or one.id not in self._away_since]
        if running:
            found = [self._repair_beside(brokers, settings, now, covered_causes(running))]
        else:
            found = [self._repair(brokers, settings, now, broken_racks)]
            if not self._away(brokers) and not any(
                mode_of(image, node) is BrokerMode.MAINTENANCE for node in image.brokers
            ):
                found.append(self._balance(brokers, settings, now))
        return tuple(one for one in found if one is not None)

    def _observe(self, image: Image, now: float, now_ms: int, *, is_plan_running: bool) -> None:
        stored_ms = away_since_ms(image)
        away: dict[NodeId, float] = {}
        for node in [one.id for one in image.brokers.values() if one.is_fenced]:
            # Times of the wall clock are compared once: it may be set later.
            before = max(now_ms - stored_ms.get(node, now_ms), 0) / SECOND_MS
            away[node] = self._away_since.get(node, now - before)
        self._away_since = away
        if self._had_plan and not is_plan_running:
            self.last_end = now
        self._had_plan = is_plan_running

    def _away(self, brokers: Sequence[PlacementBroker]) -> list[PlacementBroker]:
        return [one for one in brokers if one.id in self._away_since]

    def _repair_beside(
        self,
        brokers: Sequence[PlacementBroker],
        settings: BalanceSettings,
        now: float,
        covered: Collection[str],
    ) -> PlanNeed | None:
        """Replace brokers that are away. Those that are decommissioned have a plan of their own."""
        found = self._repair(brokers, settings, now, 0)
        if found is None:
            return None
        kept = [
            (cause, reason, node)
            for cause, reason, node in zip(found.causes, found.reasons, found.gone, strict=False)
            if node not in found.draining and cause not in covered
        ]
        if not kept and found.held_back is None:
            return None
        return PlanNeed(
            purpose=Purpose.REPAIR,
            causes=tuple(cause for cause, _, _ in kept),
            reasons=tuple(reason for _, reason, _ in kept),
            gone=tuple(node for _, _, node in kept),
            held_back=found.held_back,
            is_beside_plans=True,
        )

    def _repair(
        self,
        brokers: Sequence[PlacementBroker],
        settings: BalanceSettings,
        now: float,
        broken_racks: int,
    ) -> PlanNeed | None:
        healing = brokers_to_heal(
            {one.id: now - self._away_since[one.id] for one in self._away(brokers)},
            brokers=len(brokers),
            timeout_seconds=settings.healing_timeout_ms / 1000,
        )
        held = {one.id: one.replicas for one in brokers}
        gone = tuple(node for node in healing.brokers if held.get(node))
        found = {
            f"away {node}": f"broker {node} is away and holds {held[node]} replicas"
            for node in gone
        }
        draining = [
            one for one in brokers if one.availability is Availability.DRAINING and one.replicas
        ]
        for one in draining:
            found[f"draining {one.id}"] = (
                f"broker {one.id} is being decommissioned and holds {one.replicas} replicas"
            )
        if broken_racks:
            found["racks"] = f"{broken_racks} partitions have replicas in too few racks"
        if not found and healing.held_back is None:
            return None
        return PlanNeed(
            purpose=Purpose.REPAIR,
            causes=tuple(found),
            reasons=tuple(found.values()),
            gone=gone,
            draining=tuple(one.id for one in draining),
            held_back=healing.held_back,
        )

    def _balance(
        self, brokers: Sequence[PlacementBroker], settings: BalanceSettings, now: float
    ) -> PlanNeed | None:
        active = [one for one in brokers if one.availability is Availability.ACTIVE]
        trigger = BalanceTrigger(
            start_above=settings.threshold,
            stop_at=min(settings.threshold, BalanceTrigger().stop_at),
        )
        if now - self.last_end < settings.cool_down_ms / 1000:
            return None
        figures = broker_figures(active)
        uneven = trigger.unbalanced(figures, is_balancing=self._is_balancing)
        joined = list(_joined(active))
        self._is_balancing = bool(uneven or joined)
        found = {
            f"joined {one.id}": f"broker {one.id} holds only {one.replicas} replicas"
            for one in joined
        }
        values = figures.resources()
        for name in uneven:
            most = values[name].max_over_mean
            found[name] = f"{name}: the most loaded broker has {most:.2f} times the mean"
        if not found:
            return None
        return PlanNeed(purpose=Purpose.BALANCE, causes=tuple(found), reasons=tuple(found.values()))


def covered_causes(running: Iterable[PlanHeader]) -> tuple[str, ...]:
    """The causes that running repairs of the controller deal with."""
    return tuple(cause for one in running if one.is_repair for cause in one.causes)


def broker_figures(active: Sequence[PlacementBroker]) -> BalanceFigures:
    """How even the brokers are, from their totals alone: cheap enough for every check."""
    weights = [one.weight for one in active]
    used = [one.load.disk_bytes if one.load is not None else None for one in active]
    known = [float(one) for one in used if one is not None]
    return BalanceFigures(
        replicas=fairness([float(one.replicas) for one in active], weights),
        leaders=fairness([float(one.leaders) for one in active], weights),
        disk=_disk(active) if len(known) == len(active) else _EVEN,
        bytes_in=_EVEN,
        bytes_out=_EVEN,
        topic_replica_spread=0,
        topic_leader_spread=0,
    )


def _disk(active: Sequence[PlacementBroker]) -> Fairness:
    """Disks that are nearly empty are even: other files weigh more than replicas there."""
    loads = [one.load for one in active if one.load is not None]
    used = [float(load.disk_bytes or 0) for load in loads]
    sizes = [float(load.disk_capacity or 0) for load in loads]
    if not used or not all(sizes) or max(u / s for u, s in zip(used, sizes, strict=True)) < 0.5:
        return _EVEN
    return fairness(used, sizes)


def _joined(active: Sequence[PlacementBroker]) -> Iterator[PlacementBroker]:
    weights = sum(one.weight for one in active)
    total = sum(one.replicas for one in active)
    for one in active:
        share = total * one.weight / weights if weights else 0.0
        if share >= SHARE_MIN and one.replicas < share * JOINED_SHARE:
            yield one


class RackCheck:
    """Counts partitions whose replicas share a rack although others have brokers, in steps.

    Brokers that get no new replicas give no rack, and their replicas do not move for the rule.
    """

    def __init__(self, image: Image) -> None:
        known = {node: availability(image, one) for node, one in image.brokers.items()}
        # The planner spreads replicas over the racks of these brokers.
        self._active = {
            node: image.brokers[node].rack
            for node, one in known.items()
            if one is Availability.ACTIVE
        }
        self._racks = {
            node: image.brokers[node].rack
            for node, one in known.items()
            if one in (Availability.ACTIVE, Availability.CORDONED)
        }
        self._count = len(dict.fromkeys(self._active.values()))
        self.broken = 0

    @property
    def is_needed(self) -> bool:
        return self._count > 1 and None not in self._active.values()

    def add(self, topic: TopicImage, start: int = 0) -> int | None:
        """Count some partitions; returns where to go on, None at the end of the topic."""
        end = start + PARTITIONS_PER_STEP
        for partition in topic.partitions[start:end]:
            replicas = [node for node in partition.replicas if node not in partition.removing]
            if any(node not in self._racks for node in replicas):
                continue  # its broker is away or decommissioned: counted when it is back or moved
            racks = [self._racks[node] for node in replicas]
            if len(dict.fromkeys(racks)) < min(self._count, len(replicas)):
                self.broken += any(
                    node in self._active and racks.count(self._active[node]) > 1
                    for node in replicas
                )
        return end if end < len(topic.partitions) else None
