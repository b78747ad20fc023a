"""The fair share of each broker: how many replicas of a partition it holds on average.

A partition uses as many racks as it can, and spreads its replicas evenly over them. Racks of
unequal size make equal shares impossible: with replication factor 2 and racks of one and five
brokers, the single broker holds a replica of every partition. The shares are as equal as the rack
rule allows (water-filling): all brokers get the same level, except those that the rule limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

ROUNDS_MAX: Final = 64
"""Bisections of the water level: far below one replica in a million partitions."""


class RackRule(NamedTuple):
    """How many replicas of one partition each rack holds at least and at most."""

    low: list[int]
    high: list[int]


def rack_rule(sizes: Sequence[int], replicas: int) -> RackRule:
    """The most even spread over racks with that many brokers."""
    low = [0] * len(sizes)
    left = replicas
    while left > 0:
        open_racks = [rack for rack, size in enumerate(sizes) if size > low[rack]]
        if not open_racks or len(open_racks) > left:
            break
        for rack in open_racks:
            low[rack] += 1
        left -= len(open_racks)
    if left <= 0:
        return RackRule(low, list(low))
    return RackRule(low, [min(size, one + 1) for size, one in zip(sizes, low, strict=True)])


def shares(racks: Sequence[int], weights: Sequence[float], replicas: int) -> list[float]:
    """Replicas of one partition on each broker, on average; ``racks`` has the brokers' racks."""
    count = max(racks, default=-1) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for broker, rack in enumerate(racks):
        members[rack].append(broker)
    rule = rack_rule([len(one) for one in members], replicas)
    totals = [sum(weights[broker] for broker in one) for one in members]
    in_racks = filled(totals, rule.low, rule.high, min(replicas, len(racks)))
    result = [0.0] * len(racks)
    for one, amount in zip(members, in_racks, strict=True):
        own = [weights[broker] for broker in one]
        for broker, share in zip(
            one, filled(own, [0] * len(one), [1] * len(one), amount), strict=True
        ):
            result[broker] = share
    return result


def filled(
    weights: Sequence[float], low: Sequence[int], high: Sequence[int], amount: float
) -> list[float]:
    """Divide an amount by weight, each part between its bounds."""
    if not weights:
        return []

    def at(level: float) -> list[float]:
        return [
            min(max(weight * level, least), most)
            for weight, least, most in zip(weights, low, high, strict=True)
        ]

    even = at(amount / sum(weights))
    if abs(sum(even) - amount) < 1e-12:
        return even
    bottom, top = 0.0, max(most / weight for weight, most in zip(weights, high, strict=True))
    for _ in range(ROUNDS_MAX):
        middle = (bottom + top) / 2
        if sum(at(middle)) < amount:
            bottom = middle
        else:
            top = middle
    return at(top)
