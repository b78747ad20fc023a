"""The state of a plan in the making: replicas as planned so far, and the load of each broker.

The board keeps the hard rules. ``fits`` says whether a replica may go to a broker: not twice on one
broker, the rack rule, the disk ceiling. Old copies stay on disk until their move ends, so the disk
of a broker must hold everything that it has and everything that arrives.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from typing import Final

from riverrun.placement.brokers import DISK_CEILING, Availability
from riverrun.placement.planner.fairness import BrokerSums
from riverrun.placement.planner.layout import MISSING, ClusterLayout
from riverrun.placement.shares import RackRule, rack_rule, shares

RACK_HEAPS_MAX: Final = 16
"""With more racks than this, nearly every broker suits every partition: one heap serves all."""
CANDIDATES_MAX: Final = 64
"""Brokers that are examined for one replica before it is reported as unplaced."""
EVEN_EXAMINED_MAX: Final = 4
"""More brokers that are examined for one that keeps the topic even, once one fits."""
EPSILON: Final = 1e-7

Emptiness = tuple[float, float, int]
"""Excess, replicas before the plan, broker."""

LEAVING: Final = (Availability.DRAINING, Availability.GONE)


class Board:
    """Mutable, and owned by one plan."""

    def __init__(self, layout: ClusterLayout, *, disk_ceiling: float = DISK_CEILING) -> None:
        self.layout = layout
        self.replicas = layout.replicas[:]
        self.goals = bytearray(len(self.replicas))
        """The goal that last moved each replica, and the one in work."""
        self.goal: int = 0
        size = len(layout.brokers)
        self.is_active = [one.availability is Availability.ACTIVE for one in layout.brokers]
        self.is_cordoned = [one.availability is Availability.CORDONED for one in layout.brokers]
        self.is_leaving = [one.availability in LEAVING for one in layout.brokers]
        self.active = [at for at, is_active in enumerate(self.is_active) if is_active]
        racks = {r: at for at, r in enumerate(dict.fromkeys(b.rack for b in layout.brokers))}
        self.rack_of = [racks[one.rack] for one in layout.brokers]
        self._rack_sizes = [0] * len(racks)
        for at in self.active:
            self._rack_sizes[self.rack_of[at]] += 1
        self.has_racks = sum(one > 0 for one in self._rack_sizes) > 1
        self._rules: dict[int, RackRule] = {}
        self._shares: dict[int, list[float]] = {}
        self.counts = [0] * size
        self.disk = [0.0] * size
        self.bytes_in = [0.0] * size
        self._slots: list[array[int]] = [array("i") for _ in range(size)]
        self._sum_up()
        self.peak = list(self.disk)
        self.before = BrokerSums(list(self.counts), list(self.disk), list(self.bytes_in))
        self.disk_limits = [
            one.load.disk_capacity * disk_ceiling
            if one.load is not None and one.load.disk_capacity
            else float("inf")
            for one in layout.brokers
        ]
        self._add_foreign_bytes()
        self.is_fixed = self._fixed()
        self._topic_counts: dict[int, Counter[int]] = {}
        self._topic_sizes: dict[int, tuple[int, int]] = {}
        self._has_passive = any(
            not active and not leaving
            for active, leaving in zip(self.is_active, self.is_leaving, strict=True)
        )
        self.factors = self._count_factors()
        """Partitions by replication factor."""
        self.targets = self._total_targets()
        self._heaps = self._destination_heaps()

    def _sum_up(self) -> None:
        layout, counts, disk, rate = self.layout, self.counts, self.disk, self.bytes_in
        lists = self._slots
        sizes, rates = layout.sizes, layout.bytes_in
        for slot, (broker, partition) in enumerate(
            zip(self.replicas, layout.partition_of, strict=True)
        ):
            if broker != MISSING:
                counts[broker] += 1
                disk[broker] += sizes[partition]
                rate[broker] += rates[partition]
                lists[broker].append(slot)

    def _add_foreign_bytes(self) -> None:
        """Bytes on the disk that do not belong to known partitions take space too."""
        for at, one in enumerate(self.layout.brokers):
            if one.load is not None and one.load.disk_bytes is not None:
                self.peak[at] = max(self.peak[at], float(one.load.disk_bytes))

    def _fixed(self) -> bytearray:
        """Partitions that only a repair may move: in motion, or with too few in-sync replicas."""
        layout = self.layout
        fixed = bytearray(layout.is_pinned)
        starts, in_sync, least = layout.starts, layout.in_sync, layout.min_in_sync
        for partition in range(len(fixed)):
            spare = min(least[partition] + 1, starts[partition + 1] - starts[partition])
            if in_sync[partition] < spare:
                fixed[partition] = 1
        return fixed

    # Fair shares

    def rule(self, replicas: int) -> RackRule:
        found = self._rules.get(replicas)
        if found is None:
            found = self._rules[replicas] = rack_rule(self._rack_sizes, replicas)
        return found

    def share(self, replicas: int) -> list[float]:
        """The part of all replicas that each broker holds, for partitions of that many."""
        found = self._shares.get(replicas)
        if found is None:
            numbers = {
                r: at for at, r in enumerate(sorted({self.rack_of[one] for one in self.active}))
            }
            parts = shares(
                [numbers[self.rack_of[one]] for one in self.active],
                [self.layout.brokers[one].weight for one in self.active],
                replicas,
            )
            found = [0.0] * len(self.layout.brokers)
            whole = sum(parts) or 1.0
            for at, part in zip(self.active, parts, strict=True):
                found[at] = part / whole
            self._shares[replicas] = found
        return found

    def group(self, broker: int, replicas: int) -> int:
        """Brokers of one group can exchange replicas. If the rule fixes the number of replicas in
        a rack, its brokers exchange only with each other; the others form one group."""
        rule = self.rule(replicas)
        rack = self.rack_of[broker]
        return rack if rule.low[rack] == rule.high[rack] else MISSING

    def topic_slots(self, topic: int) -> range:
        layout = self.layout
        first, last = layout.topic_starts[topic], layout.topic_starts[topic + 1]
        return range(layout.starts[first], layout.starts[last])

    def topic_size(self, topic: int) -> tuple[int, int]:
        """Replicas that active brokers hold or will hold, and the replication factor."""
        found = self._topic_sizes.get(topic)
        if found is None:
            found = self._topic_sizes[topic] = self._measure_topic(topic)
        return found

    def _measure_topic(self, topic: int) -> tuple[int, int]:
        slots = self.topic_slots(topic)
        layout = self.layout
        partitions = layout.topic_starts[topic + 1] - layout.topic_starts[topic]
        factor = max(1, round(len(slots) / max(partitions, 1)))
        if not self._has_passive:
            return len(slots), factor
        held = Counter(self.replicas[slots.start : slots.stop])
        passive = sum(
            count
            for broker, count in held.items()
            if broker != MISSING and not self.is_active[broker] and not self.is_leaving[broker]
        )
        return len(slots) - passive, factor

    def _count_factors(self) -> Counter[int]:
        starts = self.layout.starts
        return Counter(map(int.__sub__, starts[1:], starts))

    def _total_targets(self) -> list[float]:
        by_factor = self.factors
        passive = 0
        for broker, count in enumerate(self.counts):
            if not self.is_active[broker] and not self.is_leaving[broker]:
                passive += count
        whole = sum(factor * count for factor, count in by_factor.items())
        scale = (whole - passive) / whole if whole else 0.0
        targets = [0.0] * len(self.counts)
        for factor, count in by_factor.items():
            for broker, part in enumerate(self.share(factor)):
                targets[broker] += factor * count * part * scale
        return targets

    def excess(self, broker: int) -> float:
        """Replicas above the fair share."""
        return self.counts[broker] - self.targets[broker]

    def emptiness(self, broker: int) -> Emptiness:
        """The order of receivers. Of equals, the one that began with fewer replicas is first, so
        that a new broker takes what has to move."""
        return (self.counts[broker] - self.targets[broker], self.before.counts[broker], broker)

    # Rules

    def fits(self, slot: int, broker: int, *, any_rack: bool = False) -> bool:
        """Whether the replica may go to that broker."""
        layout = self.layout
        partition = layout.partition_of[slot]
        start, end = layout.starts[partition], layout.starts[partition + 1]
        if broker in self.replicas[start:end]:
            return False
        if self.peak[broker] + layout.sizes[partition] > self.disk_limits[broker]:
            return False
        return any_rack or not self.has_racks or self.rack_fits(slot, self.rack_of[broker])

    def rack_fits(self, slot: int, to_rack: int) -> bool:
        """Whether the rack rule lets the replica go to that rack."""
        replicas, rack_of = self.replicas, self.rack_of
        source = replicas[slot]
        from_rack = rack_of[source] if source != MISSING else MISSING
        if from_rack == to_rack:
            return True
        partition = self.layout.partition_of[slot]
        start, end = self.layout.starts[partition], self.layout.starts[partition + 1]
        at_source = at_target = 0
        for other in range(start, end):
            held = replicas[other]
            if other != slot and held != MISSING:
                rack = rack_of[held]
                if rack == to_rack:
                    at_target += 1
                elif rack == from_rack:
                    at_source += 1
        rule = self.rule(end - start)
        if at_target >= rule.high[to_rack]:
            return False
        return from_rack == MISSING or at_source >= rule.low[from_rack]

    def move(self, slot: int, broker: int) -> None:
        """Plan the replica for another broker."""
        layout = self.layout
        partition = layout.partition_of[slot]
        size, rate, topic = (
            layout.sizes[partition],
            layout.bytes_in[partition],
            layout.topic_of[partition],
        )
        before, original = self.replicas[slot], layout.replicas[slot]
        if before != MISSING:
            self.counts[before] -= 1
            self.disk[before] -= size
            self.bytes_in[before] -= rate
            if before != original:
                self.peak[before] -= size
            if before in self._topic_counts:
                self._topic_counts[before][topic] -= 1
        self.replicas[slot] = broker
        self.goals[slot] = self.goal
        self.counts[broker] += 1
        self.disk[broker] += size
        self.bytes_in[broker] += rate
        if broker != original:
            self.peak[broker] += size
        if broker in self._topic_counts:
            self._topic_counts[broker][topic] += 1
        self._slots[broker].append(slot)

    @property
    def now(self) -> BrokerSums:
        return BrokerSums(self.counts, self.disk, self.bytes_in)

    def slots_of(self, broker: int) -> list[int]:
        """The replicas that a broker holds as planned so far."""
        replicas = self.replicas
        return list(dict.fromkeys(s for s in self._slots[broker] if replicas[s] == broker))

    def topic_counts(self, broker: int) -> Counter[int]:
        """Replicas of each topic on a broker."""
        found = self._topic_counts.get(broker)
        if found is None:
            topic_of, partition_of = self.layout.topic_of, self.layout.partition_of
            found = self._topic_counts[broker] = Counter(
                [topic_of[partition_of[slot]] for slot in self.slots_of(broker)]
            )
        return found

    def topic_bounds(self, topic: int, broker: int) -> tuple[int, int]:
        """The fewest and the most replicas of a topic that a broker should hold."""
        size, factor = self.topic_size(topic)
        fair = size * self.share(factor)[broker]
        return int(fair + EPSILON), -int(-(fair - EPSILON) // 1)

    def takes_topic(self, topic: int, broker: int) -> bool:
        """Whether one more replica of the topic keeps it even."""
        return self.topic_counts(broker)[topic] < self.topic_bounds(topic, broker)[1]

    def gives_topic(self, topic: int, broker: int) -> bool:
        return self.topic_counts(broker)[topic] > self.topic_bounds(topic, broker)[0]

    # Destinations

    def _destination_heaps(self) -> list[list[Emptiness]]:
        by_rack = len(self._rack_sizes) <= RACK_HEAPS_MAX
        heaps: list[list[Emptiness]] = [[] for _ in self._rack_sizes] if by_rack else [[]]
        for at in self.active:
            heaps[self.rack_of[at] if by_rack else 0].append(self.emptiness(at))
        for heap in heaps:
            heapq.heapify(heap)
        return heaps

    def destination(
        self,
        slot: int,
        *,
        any_rack: bool = False,
        only_even: bool = False,
        not_rack: int | None = None,
    ) -> int | None:
        """The best broker for a replica: keeps its topic even, then has the fewest replicas.

        ``only_even``: None rather than a broker that makes the topic uneven. ``not_rack``: another
        rack than this one.
        """
        topic = self.layout.topic_of[self.layout.partition_of[slot]]
        by_rack = len(self._heaps) > 1
        best: tuple[bool, Emptiness] | None = None
        for number, heap in enumerate(self._heaps):
            if by_rack and (number == not_rack or not (any_rack or self.rack_fits(slot, number))):
                continue
            found = self._first_fit(
                slot, topic, heap, any_rack=any_rack or by_rack, only_even=only_even,
                not_rack=not_rack,
            )  # fmt: skip
            if found is not None:
                best = found if best is None else min(best, found)
        return None if best is None else best[1][2]

    def _first_fit(
        self,
        slot: int,
        topic: int,
        heap: list[Emptiness],
        *,
        any_rack: bool,
        only_even: bool,
        not_rack: int | None,
    ) -> tuple[bool, Emptiness] | None:
        """The first broker of a heap that fits and keeps the topic even, or else the first that
        fits, as (is uneven, emptiness)."""
        best: tuple[bool, Emptiness] | None = None
        seen: list[Emptiness] = []
        limit = CANDIDATES_MAX
        size, factor = self.topic_size(topic)
        share = self.share(factor)
        while heap and len(seen) < limit:
            known = heap[0]
            broker = known[2]
            now = self.emptiness(broker)
            if now != known:
                heapq.heapreplace(heap, now)
                continue
            seen.append(heapq.heappop(heap))
            if not_rack is not None and self.rack_of[broker] == not_rack:
                continue
            if not self.fits(slot, broker, any_rack=any_rack):
                continue
            # As ``takes_topic``, which would look up the shares again for each broker.
            if self.topic_counts(broker)[topic] < size * share[broker] - EPSILON:
                best = (False, known)
                break
            if best is None and not only_even:
                best = (True, known)
                limit = min(limit, len(seen) + EVEN_EXAMINED_MAX)
        for entry in seen:
            heapq.heappush(heap, entry)
        return best
