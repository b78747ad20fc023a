"""Layouts for the tests of the planner, and the replicas after a plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from msgspec.structs import replace

from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, BrokerLoad, PlacementBroker, PlacementPolicy
from riverrun.placement.new_partitions import place
from riverrun.placement.planner.layout import ClusterLayout, LayoutBuilder
from riverrun.placement.planner.plan import Plan

Key = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class World:
    """Brokers and the replicas of each partition."""

    brokers: list[PlacementBroker]
    replicas: dict[Key, tuple[NodeId, ...]] = field(default_factory=dict)
    sizes: dict[Key, float] = field(default_factory=dict)
    in_sync: dict[Key, int] = field(default_factory=dict)
    pinned: list[Key] = field(default_factory=list)

    def layout(self, replication_factor: int | None = None) -> ClusterLayout:
        builder = LayoutBuilder(self.brokers)
        for key, nodes in self.replicas.items():
            builder.add(
                *key,
                nodes,
                size_bytes=self.sizes.get(key, 1.0),
                in_sync=self.in_sync.get(key),
                min_in_sync=max(len(nodes) - 1, 1),
                is_pinned=key in self.pinned,
                replication_factor=replication_factor,
            )
        return builder.build()

    def after(self, plan: Plan) -> World:
        moved = {(move.topic, move.partition): move.after for move in plan.moves}
        return World(brokers=self.brokers, replicas={**self.replicas, **moved}, sizes=self.sizes)

    def with_state(self, node: int, availability: Availability) -> World:
        changed = [
            replace(one, availability=availability) if one.id == node else one
            for one in self.brokers
        ]
        return World(brokers=changed, replicas=self.replicas, sizes=self.sizes)

    def with_capacity(self, capacity: int) -> World:
        load = BrokerLoad(disk_capacity=capacity)
        changed = [replace(one, load=load) for one in self.brokers]
        return World(brokers=changed, replicas=self.replicas, sizes=self.sizes)

    def active(self) -> list[NodeId]:
        return [one.id for one in self.brokers if one.availability is Availability.ACTIVE]

    def counts(self) -> list[int]:
        held = Counter(node for nodes in self.replicas.values() for node in nodes)
        return [held[node] for node in self.active()]

    def leads(self) -> list[int]:
        held = Counter(nodes[0] for nodes in self.replicas.values())
        return [held[node] for node in self.active()]

    def topic(self, name: str) -> World:
        kept = {key: nodes for key, nodes in self.replicas.items() if key[0] == name}
        return World(brokers=self.brokers, replicas=kept, sizes=self.sizes)

    def topics(self) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self.replicas))

    def disk(self) -> dict[NodeId, float]:
        used = dict.fromkeys((one.id for one in self.brokers), 0.0)
        for key, nodes in self.replicas.items():
            for node in nodes:
                used[node] += self.sizes.get(key, 1.0)
        return used

    def rack_of(self, node: NodeId) -> str | None:
        return next(one.rack for one in self.brokers if one.id == node)


def spread(values: Sequence[int]) -> int:
    return max(values, default=0) - min(values, default=0)


def brokers(count: int, racks: int = 0) -> list[PlacementBroker]:
    return [
        PlacementBroker(id=NodeId(n), rack=f"rack{n % racks}" if racks else None)
        for n in range(count)
    ]


def world(
    count: int, topics: Sequence[tuple[int, int]], *, racks: int = 0, seed: int = 0, even: bool
) -> World:
    """Topics of (partitions, replicas), placed evenly or at random."""
    rng = random.Random(seed)
    made = World(brokers=brokers(count, racks))
    for number, (partitions, factor) in enumerate(topics):
        replicas = min(factor, count)
        if even:
            held = Counter(node for nodes in made.replicas.values() for node in nodes)
            leads = Counter(nodes[0] for nodes in made.replicas.values())
            known = [
                replace(one, replicas=held[one.id], leaders=leads[one.id]) for one in made.brokers
            ]
            placed = place(
                known,
                partitions=partitions,
                replicas=replicas,
                policy=PlacementPolicy.RACK_AWARE,
                seed=rng.randrange(2**32),
            ).assignments
        else:
            nodes = [one.id for one in made.brokers]
            placed = [tuple(rng.sample(nodes, replicas)) for _ in range(partitions)]
        for index, one in enumerate(placed):
            made.replicas[f"t{number}", index] = one
            made.sizes[f"t{number}", index] = rng.choice((1.0, 5.0, 20.0))
    return made


topic_lists = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=8)
