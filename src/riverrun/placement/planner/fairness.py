"""How evenly a cluster is loaded: the figures that a plan reports before and after."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from riverrun.placement.brokers import Availability
from riverrun.placement.planner.layout import MISSING, ClusterLayout


class Fairness(Struct, frozen=True, kw_only=True):
    """One resource over all active brokers, relative to the fair share of each."""

    max_over_mean: float
    min_over_mean: float
    variation: float
    """Standard deviation divided by the mean."""
    spread: float
    """The largest value minus the smallest."""


class BalanceFigures(Struct, frozen=True, kw_only=True):
    """All resources. ``bytes_out`` includes what leaders send to followers."""

    replicas: Fairness
    leaders: Fairness
    disk: Fairness
    bytes_in: Fairness
    bytes_out: Fairness
    topic_replica_spread: int
    """The largest difference between two brokers in replicas of one topic."""
    topic_leader_spread: int

    def resources(self) -> dict[str, Fairness]:
        """In the order of the goals."""
        return {
            "replicas": self.replicas,
            "leaders": self.leaders,
            "disk": self.disk,
            "bytes in": self.bytes_in,
            "bytes out": self.bytes_out,
        }


def fairness(values: Sequence[float], weights: Sequence[float]) -> Fairness:
    """Figures of values that should be proportional to weights."""
    if not values or sum(values) == 0:
        return Fairness(max_over_mean=1.0, min_over_mean=1.0, variation=0.0, spread=0.0)
    mean = sum(values) / sum(weights)
    relative = [value / weight / mean for value, weight in zip(values, weights, strict=True)]
    deviation = math.sqrt(sum((one - 1) ** 2 for one in relative) / len(relative))
    return Fairness(
        max_over_mean=max(relative),
        min_over_mean=min(relative),
        variation=deviation,
        spread=max(values) - min(values),
    )


class BrokerSums(NamedTuple):
    """The sums of each broker's replicas."""

    counts: Sequence[float]
    disk: Sequence[float]
    bytes_in: Sequence[float]


def measure(
    layout: ClusterLayout, replicas: array[int], leaders: array[int], sums: BrokerSums
) -> BalanceFigures:
    """The figures of a layout with these replicas and leaders."""
    leads = [0.0] * len(layout.brokers)
    rate_out = list(leads)
    bytes_in, bytes_out, starts = layout.bytes_in, layout.bytes_out, layout.starts
    for partition, leader in enumerate(leaders):
        if leader != MISSING:
            copies = starts[partition + 1] - starts[partition] - 1
            leads[leader] += 1
            rate_out[leader] += bytes_out[partition] + copies * bytes_in[partition]
    active = [
        at for at, one in enumerate(layout.brokers) if one.availability is Availability.ACTIVE
    ]
    weights = [layout.brokers[at].weight for at in active]

    def figure(values: Sequence[float]) -> Fairness:
        return fairness([values[at] for at in active], weights)

    return BalanceFigures(
        replicas=figure(sums.counts),
        leaders=figure(leads),
        disk=figure(sums.disk),
        bytes_in=figure(sums.bytes_in),
        bytes_out=figure(rate_out),
        topic_replica_spread=_topic_spread(layout, replicas, active, layout.starts),
        topic_leader_spread=_topic_spread(layout, leaders, active, None),
    )


def _topic_spread(
    layout: ClusterLayout, held: array[int], active: Sequence[int], starts: array[int] | None
) -> int:
    """The largest spread of a topic. ``starts`` maps partitions to slots, None to themselves."""
    worst = 0
    known = frozenset(active)
    for topic in range(len(layout.topics)):
        first, last = layout.topic_starts[topic], layout.topic_starts[topic + 1]
        if starts is not None:
            first, last = starts[first], starts[last]
        counts = [n for broker, n in Counter(held[first:last]).items() if broker in known]
        if counts:
            least = min(counts) if len(counts) == len(active) else 0
            worst = max(worst, max(counts) - least)
    return worst


def failover_max_over_mean(
    layout: ClusterLayout, replicas: array[int], leaders: array[int]
) -> float:
    """The most leaders of any broker after the loss of any one other, relative to the mean.

    A partition is then led by its first remaining active replica.
    """
    active = [one.availability is Availability.ACTIVE for one in layout.brokers]
    brokers = [at for at, is_active in enumerate(active) if is_active]
    if len(brokers) < 2:
        return 1.0
    leads: Counter[int] = Counter()
    heirs: dict[int, Counter[int]] = {}
    starts = layout.starts
    for partition, leader in enumerate(leaders):
        if leader == MISSING:
            continue
        leads[leader] += 1
        for broker in replicas[starts[partition] : starts[partition + 1]]:
            if broker not in (leader, MISSING) and active[broker]:
                heirs.setdefault(leader, Counter())[broker] += 1
                break
    mean = leads.total() / (len(brokers) - 1)
    most = 0
    for lost in brokers:
        inherited = heirs.get(lost, Counter())
        after = (leads[one] + inherited[one] for one in brokers if one != lost)
        most = max(most, *after)
    return most / mean if mean else 1.0
