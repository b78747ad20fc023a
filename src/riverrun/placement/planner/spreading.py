"""Even counts: first each topic, then all replicas, with as few moves as possible.

A broker below its share takes replicas from those above theirs. If each topic is even and the
totals are not, the fuller broker of a pair holds more replicas of some topic, and moving one of
these keeps that topic even. So both goals can be reached one after the other.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from riverrun.placement.planner.board import EPSILON, Board, Emptiness
from riverrun.placement.planner.by_size import ReplicasBySize

REPLICAS_EXAMINED_MAX: Final = 256
"""Replicas of one broker that are examined for one move."""
DONORS_EXAMINED_MAX: Final = 24
"""Brokers that are tried for one move before its receiver is left as it is."""


class Spreader:
    """Plans moves between active brokers.

    ``only_moved``: only replicas that the plan moves already may change their destination, as in
    the plan of a decommission.
    """

    def __init__(self, board: Board, *, only_moved: bool = False) -> None:
        self._board = board
        self._only_moved = only_moved
        self._sorted: dict[int, tuple[list[int], list[float]]] = {}
        self._bytes_lacking: dict[int, float] = {}
        """What each receiver lacks of its share of the bytes of the topics filled so far."""
        held = sum(board.counts[one] for one in board.active)
        self._bytes_per_replica = sum(board.disk[one] for one in board.active) / max(held, 1)

    def spread(self) -> None:
        self.spread_topics()
        self.spread_totals()

    # Each topic

    def spread_topics(self) -> None:
        for topic in range(len(self._board.layout.topics)):
            self._spread_topic(topic)

    def _spread_topic(self, topic: int) -> None:
        board = self._board
        slots = board.topic_slots(topic)
        counts = Counter(board.replicas[slots.start : slots.stop])
        size, factor = board.topic_size(topic)
        share = board.share(factor)
        if size < len(board.active):
            # Few replicas: only brokers that hold some can have too many, and none has too few
            # unless its weight is large.
            looked_at = [broker for broker in counts if broker >= 0 and board.is_active[broker]]
        else:
            looked_at = board.active
        over: list[int] = []
        under: list[int] = []
        for broker in looked_at:
            fair = size * share[broker]
            count = counts[broker]
            if count > fair + 1 - EPSILON:
                over.append(broker)
            elif count < fair - 1 + EPSILON:
                under.append(broker)
        if not over and not under:
            return
        holders: dict[int, list[int]] = {}
        for slot in self._movable(slots):
            holders.setdefault(board.replicas[slot], []).append(slot)
        if under:
            self._fill(topic, under, holders, counts)
        for broker in over:
            _, high = board.topic_bounds(topic, broker)
            for slot in holders.get(broker, ()):
                if counts[broker] <= high:
                    break
                if board.replicas[slot] != broker:
                    continue
                target = board.destination(slot, only_even=True)
                if target is not None:
                    board.move(slot, target)
                    counts[broker] -= 1
                    counts[target] += 1

    def _fill(
        self, topic: int, under: list[int], holders: dict[int, list[int]], counts: Counter[int]
    ) -> None:
        """Brokers with too few replicas of a topic take from those with the most.

        Each replica has about the size that its receiver lacks per replica. Any replica makes the
        counts even, but a new broker that gets only small or only large ones would have to swap
        some of them for the sake of its disk.
        """
        board = self._board
        size, factor = board.topic_size(topic)
        share = board.share(factor)
        sizes, partition_of = board.layout.sizes, board.layout.partition_of
        self._expect_bytes(topic, under)
        pools: dict[int, ReplicasBySize] = {}

        def rank(broker: int) -> tuple[float, float, int]:
            return (size * share[broker] - counts[broker], -board.excess(broker), broker)

        groups: dict[int, list[tuple[float, float, int]]] = {}
        for broker in holders:
            if board.is_active[broker]:
                groups.setdefault(board.group(broker, factor), []).append(rank(broker))
        for heap in groups.values():
            heapq.heapify(heap)
        for receiver in sorted(under, key=board.emptiness):
            low, _ = board.topic_bounds(topic, receiver)
            donors = groups.get(board.group(receiver, factor), [])
            started: set[int] = set()
            while counts[receiver] < low:
                tried: list[tuple[float, float, int]] = []
                found = False
                while donors and not found and len(tried) < DONORS_EXAMINED_MAX:
                    entry = heapq.heappop(donors)
                    donor = entry[2]
                    now = rank(donor)
                    if now != entry:
                        heapq.heappush(donors, now)
                        continue
                    tried.append(entry)
                    if counts[donor] <= board.topic_bounds(topic, donor)[0]:
                        break  # the donors that remain have no replica to spare
                    pool = pools.get(donor)
                    if pool is None:
                        pool = pools[donor] = ReplicasBySize(
                            (sizes[partition_of[slot]], slot) for slot in holders[donor]
                        )
                    elif donor not in started:
                        pool.restart()
                    started.add(donor)
                    found = self._take(pool, receiver, low - counts[receiver])
                    if found:
                        counts[donor] -= 1
                        counts[receiver] += 1
                for entry in tried:
                    heapq.heappush(donors, rank(entry[2]))
                if not found:
                    break

    def _expect_bytes(self, topic: int, receivers: Iterable[int]) -> None:
        board = self._board
        size, factor = board.topic_size(topic)
        share = board.share(factor)
        sizes, partition_of = board.layout.sizes, board.layout.partition_of
        slots = board.topic_slots(topic)
        bytes_of = [sizes[partition] for partition in partition_of[slots.start : slots.stop]]
        held = dict.fromkeys(receivers, 0.0)
        for broker, bytes_here in zip(
            board.replicas[slots.start : slots.stop], bytes_of, strict=True
        ):
            if broker in held:
                held[broker] += bytes_here
        mean = sum(bytes_of) / len(slots)
        for broker, bytes_held in held.items():
            lacking = self._bytes_lacking.get(broker, 0.0)
            self._bytes_lacking[broker] = lacking + mean * size * share[broker] - bytes_held

    def _take(self, pool: ReplicasBySize, receiver: int, replicas_lacking: int) -> bool:
        """Move one replica. One that does not fit now would not fit this receiver later."""
        board = self._board
        wanted = self._bytes_lacking[receiver] / replicas_lacking
        taken = pool.take(wanted, lambda slot: board.fits(slot, receiver))
        if taken is None:
            return False
        slot, size = taken
        board.move(slot, receiver)
        self._bytes_lacking[receiver] -= size
        return True

    # All replicas

    def spread_totals(self) -> None:
        """Even the totals inside each group of brokers that can exchange replicas."""
        board = self._board
        if not board.factors:
            return
        common = max(board.factors, key=lambda factor: (board.factors[factor], factor))
        groups: dict[int, list[int]] = {}
        for broker in board.active:
            groups.setdefault(board.group(broker, common), []).append(broker)
        for members in groups.values():
            self._spread_among(members)
        if len(groups) > 1 and len(board.factors) > 1:
            self._spread_among(board.active)

    def _spread_among(self, brokers: Sequence[int]) -> None:
        """Pairs of the fullest and the emptiest broker, until all are within one of their share."""
        board = self._board
        donors = [(-board.excess(one), one) for one in brokers]
        receivers = [board.emptiness(one) for one in brokers]
        heapq.heapify(donors)
        heapq.heapify(receivers)
        while donors and receivers:
            high, donor = heapq.heappop(donors)
            if -high != board.excess(donor):
                heapq.heappush(donors, (-board.excess(donor), donor))
                continue
            entry = heapq.heappop(receivers)
            low, _, receiver = entry
            if entry != board.emptiness(receiver):
                heapq.heappush(receivers, board.emptiness(receiver))
                heapq.heappush(donors, (high, donor))
                continue
            is_over = -high > 1 - EPSILON
            is_under = low < -1 + EPSILON
            if (not is_over and not is_under) or -high - low < 1 + EPSILON:
                return
            if self._exchange(donor, receiver):
                heapq.heappush(donors, (-board.excess(donor), donor))
                heapq.heappush(receivers, board.emptiness(receiver))
            elif is_over and self._give_to_another(donor, receivers):
                heapq.heappush(donors, (-board.excess(donor), donor))
                heapq.heappush(receivers, entry)
            elif is_under and self._take_from_another(receiver, donors):
                heapq.heappush(receivers, board.emptiness(receiver))
                heapq.heappush(donors, (high, donor))
            # Else rules forbid every move of this broker. The others continue without it.
            elif not is_under:
                heapq.heappush(receivers, entry)
            elif not is_over:
                heapq.heappush(donors, (high, donor))

    def _give_to_another(self, donor: int, receivers: list[Emptiness]) -> bool:
        for _, _, other in heapq.nsmallest(DONORS_EXAMINED_MAX, receivers):
            room = self._board.excess(other) + 1 < self._board.excess(donor) - EPSILON
            if other != donor and room and self._exchange(donor, other):
                return True
        return False

    def _take_from_another(self, receiver: int, donors: list[tuple[float, int]]) -> bool:
        for _, other in heapq.nsmallest(DONORS_EXAMINED_MAX, donors):
            room = self._board.excess(receiver) + 1 < self._board.excess(other) - EPSILON
            if other != receiver and room and self._exchange(other, receiver):
                return True
        return False

    def _exchange(self, donor: int, receiver: int) -> bool:
        """Move one replica. Its size is the one that the receiver's disk lacks per replica."""
        board = self._board
        slots, sizes = self._candidates(donor)
        at = bisect_left(sizes, self._wanted_size(receiver))
        below, above = at - 1, at
        topic_of, partition_of = board.layout.topic_of, board.layout.partition_of
        for step in range(min(REPLICAS_EXAMINED_MAX, len(slots))):
            if below < 0 or (above < len(slots) and step % 2 == 0):
                place, above = above, above + 1
            else:
                place, below = below, below - 1
            if place >= len(slots):
                break
            slot = slots[place]
            topic = topic_of[partition_of[slot]]
            if (
                board.replicas[slot] == donor
                and board.gives_topic(topic, donor)
                and board.takes_topic(topic, receiver)
                and board.fits(slot, receiver)
            ):
                board.move(slot, receiver)
                del slots[place], sizes[place]
                return True
        return False

    def _wanted_size(self, receiver: int) -> float:
        board = self._board
        lacking = board.targets[receiver] - board.counts[receiver]
        fair = self._bytes_per_replica * board.targets[receiver]
        return max(fair - board.disk[receiver], 0.0) / max(lacking, 1.0)

    def _candidates(self, donor: int) -> tuple[list[int], list[float]]:
        """The movable replicas of a broker by size. Those that arrive later do not move on."""
        found = self._sorted.get(donor)
        if found is None:
            layout = self._board.layout
            sizes, partition_of = layout.sizes, layout.partition_of
            slots = self._movable(self._board.slots_of(donor))
            slots.sort(key=lambda slot: (sizes[partition_of[slot]], slot))
            found = self._sorted[donor] = (slots, [sizes[partition_of[slot]] for slot in slots])
        return found

    def _movable(self, slots: Iterable[int]) -> list[int]:
        board = self._board
        now, before = board.replicas, board.layout.replicas
        if self._only_moved:
            return [slot for slot in slots if now[slot] != before[slot]]
        fixed, partition_of = board.is_fixed, board.layout.partition_of
        return [s for s in slots if now[s] != before[s] or not fixed[partition_of[s]]]
