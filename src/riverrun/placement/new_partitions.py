"""Placement of new partitions: pure, and deterministic for the same brokers and seed.

The cost is O(B + R log B) for B brokers and R new replicas.

* Hard rules: no broker twice in a partition; as many racks as possible, evenly; brokers that are
  cordoned or draining get nothing; fenced brokers are used only if there are too few others, and
  never lead.
* Each topic is spread evenly: replicas and leaders differ by at most one between brokers of equal
  weight, unless racks of unequal size forbid it.
* Where that leaves a choice, the broker with the lowest load is taken (``Scores``), so the totals
  of many small topics stay even too.
* Leaders are chosen among the replicas. The second replica, which leads next if the leader fails,
  is chosen so that the leaderships of a failed broker spread over many others.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId
from riverrun.placement.brokers import Availability, PlacementBroker, PlacementPolicy, Scores
from riverrun.placement.leaders import LeaderSpread
from riverrun.placement.shares import shares

WEIGHT_LIMITS: Final = (0.25, 4.0)
"""Weights relative to the median. A broker without any space must not distort a whole topic."""

EPSILON: Final = 1e-7

_Key = tuple[bool, float, float, float, float, float]
_RackKey = tuple[int, bool, float, float, float, float, float]


class Choice(NamedTuple):
    """Why one replica went to a broker: the state before it was placed."""

    broker: NodeId
    is_new_rack: bool
    """No earlier replica of the partition is in that rack."""
    topic_replicas: int
    score: float


class Placement(NamedTuple):
    """The replicas of each new partition, the preferred leader first, and why."""

    assignments: list[tuple[NodeId, ...]]
    choices: list[list[Choice]]


def place(
    brokers: Sequence[PlacementBroker],
    *,
    partitions: int,
    replicas: int,
    policy: PlacementPolicy,
    seed: int,
    existing: Sequence[Sequence[NodeId]] = (),
) -> Placement:
    """Place new partitions of one topic whose ``existing`` partitions have these replicas.

    Raises INVALID_REPLICATION_FACTOR if there are too few brokers.
    """
    usable = sorted((one for one in brokers if one.may_hold), key=lambda one: one.id)
    _check_possible(usable, replicas)
    if policy is PlacementPolicy.RANGE:
        return _range(usable, partitions, replicas)
    with_resources = policy is PlacementPolicy.RESOURCE_AWARE
    return _Placer(usable, partitions, replicas, existing, seed, with_resources).run()


def _check_possible(brokers: Sequence[PlacementBroker], replicas: int) -> None:
    reason: str | None = None
    if all(one.availability is Availability.FENCED for one in brokers):
        reason = "All brokers are currently fenced or have all their log directories cordoned."
    elif replicas > len(brokers):
        reason = (
            f"The target replication factor of {replicas} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )
    if reason is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): {reason}",
        )


def _range(usable: Sequence[PlacementBroker], partitions: int, replicas: int) -> Placement:
    """Consecutive brokers in order of ids, from the one with the fewest leaders.

    Followers shift by one with each lap, as in Kafka's striped placement without racks.
    """
    active = [one for one in usable if one.availability is Availability.ACTIVE]
    fenced = [one for one in usable if one.availability is not Availability.ACTIVE]
    size = len(active)
    start = min(range(size), key=lambda at: (active[at].leaders, active[at].replicas, at))
    assignments: list[tuple[NodeId, ...]] = []
    choices: list[list[Choice]] = []
    for index in range(partitions):
        lap, step = divmod(index, size)
        first = (start + step) % size
        chosen = [active[first]]
        for follower in range(min(replicas, size) - 1):
            chosen.append(active[(first + 1 + (lap + follower) % (size - 1)) % size])
        chosen += (fenced[(index + extra) % len(fenced)] for extra in range(replicas - len(chosen)))
        assignments.append(tuple(one.id for one in chosen))
        choices.append([Choice(one.id, False, one.replicas, 0.0) for one in chosen])
    return Placement(assignments, choices)


class _Placer:
    """One placement. Brokers are indexes into ``_brokers``; racks are numbered in order."""

    def __init__(
        self,
        usable: Sequence[PlacementBroker],
        partitions: int,
        replicas: int,
        existing: Sequence[Sequence[NodeId]],
        seed: int,
        with_resources: bool,
    ) -> None:
        self._brokers = usable
        self._partitions = partitions
        self._replicas = replicas
        self._random = random.Random(seed)
        numbers = {rack: at for at, rack in enumerate(dict.fromkeys(b.rack for b in usable))}
        self._rack_of = [numbers[one.rack] for one in usable]
        self._may_lead = [one.availability is Availability.ACTIVE for one in usable]
        self._scores = Scores(usable, partitions * replicas, with_resources=with_resources)
        self._weights = _relative_weights(usable)
        self._counts = [0] * len(usable)
        self._leads = [0] * len(usable)
        places = {one.id: at for at, one in enumerate(usable)}
        for one in existing:
            held = [places[node] for node in one if node in places]
            for at in held:
                self._counts[at] += 1
            if one and one[0] in places:
                self._leads[places[one[0]]] += 1
        self._base, self._pool = self._candidates()
        self._fair = self._fair_counts(len(existing) + partitions)
        self._guaranteed = [int(fair + EPSILON) for fair in self._fair]

    def _candidates(self) -> tuple[list[int], list[int]]:
        """Brokers that hold every partition, and those to choose the other replicas from."""
        active = [at for at, may_lead in enumerate(self._may_lead) if may_lead]
        if self._replicas <= len(active):
            return [], active
        return active, [at for at, may_lead in enumerate(self._may_lead) if not may_lead]

    def _fair_counts(self, partitions: int) -> list[float]:
        """The fair number of replicas of the topic on each broker.

        A broker gets the whole part of it in any case. Up to there, the order in which brokers take
        replicas is random, so that partitions have many different sets of replicas.
        """
        racks = {rack: at for at, rack in enumerate(sorted({self._rack_of[b] for b in self._pool}))}
        each = shares(
            [racks[self._rack_of[at]] for at in self._pool],
            [self._weights[at] for at in self._pool],
            self._replicas - len(self._base),
        )
        fair = [0.0] * len(self._brokers)
        for at, share in zip(self._pool, each, strict=True):
            fair[at] = share * partitions
        return fair

    def run(self) -> Placement:
        chosen, choices = self._choose_sets()
        leaders = self._choose_leaders(chosen)
        ordered = self._ordered(chosen, leaders)
        by_broker = [{choice.broker: choice for choice in one} for one in choices]
        assignments = [tuple(self._brokers[at].id for at in one) for one in ordered]
        return Placement(
            assignments,
            [
                [known[node] for node in nodes]
                for nodes, known in zip(assignments, by_broker, strict=True)
            ],
        )

    # Replicas

    def _key(self, at: int) -> _Key:
        """The order of brokers in a rack: space, replicas and leaders of the topic, load,
        chance."""
        count = self._counts[at]
        level = count // self._weights[at]
        # Also for the last guaranteed one: brokers with a low load take it early, so that they are
        # free for the replicas that remain.
        score, led = 0.0, 0.0
        if count + 1 >= self._guaranteed[at]:
            score, led = self._scores[at], self._brokers[at].leaders / self._brokers[at].weight
        # Leaders of existing partitions stay, so brokers that lead few of them come first.
        leads = self._leads[at] // self._weights[at]
        return (self._scores.is_full[at], level, leads, score, led, self._random.random())

    def _choose_sets(self) -> tuple[list[list[int]], list[list[Choice]]]:
        racks = _Racks(self._rack_of, self._fair, self._counts, self._base, self._pool)
        for at in self._pool:
            racks.put(at, self._key(at))
        racks.open()
        sets: list[list[int]] = []
        choices: list[list[Choice]] = []
        for _ in range(self._partitions):
            chosen: list[int] = list(self._base)
            why = [self._choice(at, chosen[:place]) for place, at in enumerate(chosen)]
            while len(chosen) < self._replicas:
                at = racks.take()
                why.append(self._choice(at, chosen))
                chosen.append(at)
            for at in chosen:
                self._counts[at] += 1
                self._scores.add(at)
            for at in chosen[len(self._base) :]:
                racks.put(at, self._key(at))
            racks.open()
            sets.append(chosen)
            choices.append(why)
        return sets, choices

    def _choice(self, at: int, before: Sequence[int]) -> Choice:
        rack = self._rack_of[at]
        return Choice(
            self._brokers[at].id,
            all(self._rack_of[one] != rack for one in before),
            self._counts[at],
            self._scores[at],
        )

    # Leaders

    def _choose_leaders(self, sets: Sequence[Sequence[int]]) -> list[int]:
        """Fewest leaders of the topic first, then fewest in all; then exactly even by exchange."""
        totals = [one.leaders / one.weight for one in self._brokers]
        leads = self._leads
        candidates = [[at for at in one if self._may_lead[at]] for one in sets]
        leaders: list[int] = []
        for one in candidates:
            best = min(
                one,
                key=lambda at: (leads[at] // self._weights[at], totals[at], self._random.random()),
            )
            leads[best] += 1
            totals[best] += 1 / self._brokers[best].weight
            leaders.append(best)
        able = [at for at, may_lead in enumerate(self._may_lead) if may_lead]
        whole = sum(self._weights[at] for at in able)
        all_led = sum(leads)
        fair = [all_led * weight / whole for weight in self._weights]
        low = [int(one + EPSILON) for one in fair]
        high = [-int(-(one - EPSILON) // 1) for one in fair]
        LeaderSpread(candidates, leaders, leads).even(able, low, high)
        return leaders

    def _ordered(self, sets: Sequence[Sequence[int]], leaders: Sequence[int]) -> list[list[int]]:
        """The leader first; then the active replica that succeeds this leader least often."""
        successions: dict[tuple[int, int], int] = {}
        seconds = [0] * len(self._brokers)
        ordered: list[list[int]] = []
        for one, leader in zip(sets, leaders, strict=True):
            rest = [at for at in one if at != leader]
            rest.sort(
                key=lambda at, leader=leader: (  # type: ignore[misc]
                    not self._may_lead[at],
                    successions.get((leader, at), 0),
                    seconds[at],
                )
            )
            if rest:
                pair = (leader, rest[0])
                successions[pair] = successions.get(pair, 0) + 1
                seconds[rest[0]] += 1
            ordered.append([leader, *rest])
        return ordered


class _Racks:
    """A heap of racks, each a heap of brokers.

    A partition takes from the racks that it uses least. Of these, first come racks that lack whole
    replicas to their fair number, the most lacking first: a rack that is part of every partition
    must not be passed over once. Then come those that lack a fraction, by the load of their first
    broker; then the others.
    """

    def __init__(
        self,
        rack_of: Sequence[int],
        fair: Sequence[float],
        counts: Sequence[int],
        base: Sequence[int],
        pool: Sequence[int],
    ) -> None:
        size = max(rack_of) + 1
        self._rack_of = rack_of
        self._members: list[list[tuple[_Key, int]]] = [[] for _ in range(size)]
        self._fair = [0.0] * size
        self._held = [0] * size
        for at in pool:
            self._fair[rack_of[at]] += fair[at]
            self._held[rack_of[at]] += counts[at]
        self._used_by_all = [0] * size
        for at in base:
            self._used_by_all[rack_of[at]] += 1
        self._order: list[tuple[_RackKey, int]] = []
        self._again: list[tuple[_RackKey, int]] = []
        self._changed: dict[int, None] = dict.fromkeys(rack_of[at] for at in pool)

    def put(self, at: int, key: _Key) -> None:
        """Add a broker, or return one that was taken."""
        heapq.heappush(self._members[self._rack_of[at]], (key, at))

    def open(self) -> None:
        """Begin the next partition, after all brokers were returned."""
        self._again.clear()
        for rack in self._changed:
            key = self._rack_key(rack, self._used_by_all[rack])
            heapq.heappush(self._order, (key, rack))
        self._changed.clear()

    def take(self) -> int:
        """The next broker of a partition."""
        order, again = self._order, self._again
        key, rack = heapq.heappop(again if again and (not order or again[0] < order[0]) else order)
        members = self._members[rack]
        _, at = heapq.heappop(members)
        self._held[rack] += 1
        self._changed[rack] = None
        if members:
            heapq.heappush(again, (self._rack_key(rack, key[0] + 1), rack))
        return at

    def _rack_key(self, rack: int, used: int) -> _RackKey:
        is_full, _, leads, score, led, chance = self._members[rack][0][0]
        missing = self._fair[rack] - self._held[rack]
        if missing >= 1 - EPSILON:
            stage = -missing
        elif missing > EPSILON:
            stage = 0.0
        else:
            stage = 1 - missing
        return (used, is_full, stage, leads, score, led, chance)


def _relative_weights(brokers: Sequence[PlacementBroker]) -> list[float]:
    weights = sorted(one.weight for one in brokers)
    median = weights[len(weights) // 2]
    low, high = WEIGHT_LIMITS
    return [min(max(one.weight / median, low), high) for one in brokers]
