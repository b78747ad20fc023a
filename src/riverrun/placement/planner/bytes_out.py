"""Even bytes out: leaderships of busy partitions pass to brokers that send less. No data moves.

A leader sends what consumers read and what its followers copy. Two brokers exchange the leaderships
of two partitions that both hold, so that counts stay as they are. A leadership passes without an
exchange only if counts stay within one. Each partition changes at most once for this goal.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import Final

from riverrun.placement.planner.board import Board
from riverrun.placement.planner.layout import MISSING
from riverrun.placement.planner.leadership import LeaderPlan
from riverrun.placement.planner.resources import GAIN_MIN, START_ABOVE, STOP_AT

EXCHANGES_PER_BROKER_MAX: Final = 50
GIVEN_EXAMINED_MAX: Final = 24
"""Leaderships of one broker that are examined for one exchange."""
TAKEN_EXAMINED_MAX: Final = 6
"""Leaderships of the same topic, and of any, that are examined in exchange for one."""
GAIN_MAX: Final = 1.8
"""With 2, the receiver could end where the donor was."""
GOOD_ENOUGH: Final = 0.2
"""The search ends with an exchange that misses the wanted gain by less than this part of it."""

ANY_TOPIC: Final = -1

ByRate = tuple[list[int], list[float]]
"""Partitions by the bytes that their leader sends, and these bytes."""


class BytesOutEvener:
    """Changes the leaders of a plan."""

    def __init__(self, board: Board, leaders: LeaderPlan) -> None:
        self._board = board
        self._plan = leaders
        layout = board.layout
        size = len(layout.brokers)
        self._rates = array("d")
        self._loads = [0.0] * size
        self._counts = [0] * size
        starts = layout.starts
        for partition, leader in enumerate(leaders.leaders):
            copies = starts[partition + 1] - starts[partition] - 1
            rate = layout.bytes_out[partition] + copies * layout.bytes_in[partition]
            self._rates.append(rate)
            if leader != MISSING:
                self._loads[leader] += rate
                self._counts[leader] += 1
        whole, number = sum(self._loads), sum(self._counts)
        self._fair = [whole * share for share in leaders.shares]
        self._bounds = [leaders.bounds(number, broker) for broker in range(size)]
        self._able = [broker for broker in range(size) if self._fair[broker] > 0]
        self._led: dict[int, ByRate] = {}
        self._held_by: dict[int, dict[int, list[int]]] = {}
        self._shared: dict[tuple[int, int, int], ByRate] = {}

    def run(self) -> None:
        if all(self._relative(one) <= START_ABOVE for one in self._able):
            return
        donors = [(-self._relative(one), one) for one in self._able]
        heapq.heapify(donors)
        for _ in range(EXCHANGES_PER_BROKER_MAX * len(self._able)):
            if not donors:
                return
            known, donor = heapq.heappop(donors)
            if -known <= STOP_AT:
                return
            # A broker whose load rose since is met again with its new load.
            now = -self._relative(donor)
            if now == known and not self._relieve(donor):
                continue
            heapq.heappush(donors, (-self._relative(donor), donor))

    def _relative(self, broker: int) -> float:
        return self._loads[broker] / self._fair[broker]

    def _relieve(self, donor: int) -> bool:
        """Pass on the leadership that evens the broker and a receiver the most.

        A gain of ``middle`` would make the surplus of both equal. The sum of the squares of all
        surpluses falls by twice the score.
        """
        surplus = self._surplus(donor)
        least_gain = GAIN_MIN * self._fair[donor]
        best: tuple[float, int, int, int] | None = None
        for given in self._given(donor, surplus):
            is_good = False
            for receiver in self._plan[given]:
                middle = (surplus - self._surplus(receiver)) / 2
                wanted = min(surplus, middle)
                if receiver == donor or wanted <= 0:
                    continue
                for taken in self._taken(given, donor, receiver, wanted):
                    gain = self._rates[given] - (self._rates[taken] if taken != MISSING else 0.0)
                    if not least_gain < gain < GAIN_MAX * wanted:
                        continue
                    score = gain * (2 * middle - gain)
                    if best is None or score > best[0]:
                        best = (score, given, receiver, taken)
                        miss = abs(gain - wanted)
                        is_good = middle >= surplus / 2 and miss < GOOD_ENOUGH * wanted
            if is_good:
                break
        if best is None:
            return False
        _, given, receiver, taken = best
        self._pass_on(given, receiver)
        if taken != MISSING:
            self._pass_on(taken, donor)
        return True

    def _surplus(self, broker: int) -> float:
        return self._loads[broker] - self._fair[broker]

    def _given(self, donor: int, surplus: float) -> Iterator[int]:
        """Leaderships of a broker, those that would make up for its surplus alone first."""
        if donor not in self._led:
            self._led[donor] = self._by_rate(self._partitions_led(donor))
        partitions, rates = self._led[donor]
        at = bisect_left(rates, surplus)
        found = 0
        for place in chain(range(at, len(partitions)), range(at - 1, -1, -1)):
            if self._may_pass(partitions[place], donor):
                yield partitions[place]
                found += 1
                if found >= GIVEN_EXAMINED_MAX:
                    return

    def _taken(self, given: int, donor: int, receiver: int, gain: float) -> Iterator[int]:
        """What may pass back in exchange: MISSING for nothing, or a partition of about the rate
        that leaves about that gain."""
        plan = self._plan
        may_give = plan.keeps_topic_even(given, donor, receiver)
        has_room = (
            self._counts[donor] > self._bounds[donor][0]
            and self._counts[receiver] < self._bounds[receiver][1]
        )
        if may_give and has_room:
            yield MISSING
        wanted = self._rates[given] - gain
        topic = self._board.layout.topic_of[given]
        for taken in _near(self._shared_with(receiver, donor, topic), wanted):
            if self._may_pass(taken, receiver):
                yield taken
        if may_give:
            for taken in _near(self._shared_with(receiver, donor, ANY_TOPIC), wanted):
                if self._may_pass(taken, receiver) and plan.keeps_topic_even(
                    taken, receiver, donor
                ):
                    yield taken

    def _may_pass(self, partition: int, leader: int) -> bool:
        plan = self._plan
        return plan.leaders[partition] == leader and partition not in plan.passed_for_bytes_out

    def _shared_with(self, broker: int, other: int, topic: int) -> ByRate:
        """The partitions, of one topic or any, that a broker leads and another could lead."""
        found = self._shared.get((broker, other, topic))
        if found is None:
            if broker not in self._held_by:
                self._held_by[broker] = self._led_partitions_by_holder(broker)
            partitions = self._held_by[broker].get(other, [])
            if topic != ANY_TOPIC:
                topic_of = self._board.layout.topic_of
                partitions = [one for one in partitions if topic_of[one] == topic]
            found = self._shared[broker, other, topic] = self._by_rate(partitions)
        return found

    def _led_partitions_by_holder(self, broker: int) -> dict[int, list[int]]:
        replicas, starts = self._board.replicas, self._board.layout.starts
        held_by: dict[int, list[int]] = {}
        for partition in self._partitions_led(broker):
            for holder in replicas[starts[partition] : starts[partition + 1]]:
                if holder != broker:
                    held_by.setdefault(holder, []).append(partition)
        return held_by

    def _partitions_led(self, broker: int) -> list[int]:
        layout, leaders = self._board.layout, self._plan.leaders
        held = [layout.partition_of[slot] for slot in self._board.slots_of(broker)]
        return [
            partition
            for partition in held
            if leaders[partition] == broker and not layout.is_pinned[partition]
        ]

    def _by_rate(self, partitions: list[int]) -> ByRate:
        rates = self._rates
        ordered = sorted(partitions, key=lambda partition: (rates[partition], partition))
        return ordered, [rates[partition] for partition in ordered]

    def _pass_on(self, partition: int, broker: int) -> None:
        old = self._plan.leaders[partition]
        for one, sign in ((old, -1), (broker, 1)):
            self._loads[one] += sign * self._rates[partition]
            self._counts[one] += sign
        self._plan.pass_for_bytes_out(partition, broker)


def _near(found: ByRate, wanted: float) -> list[int]:
    """A few partitions of about the wanted rate."""
    partitions, rates = found
    start = max(bisect_left(rates, wanted) - TAKEN_EXAMINED_MAX // 2, 0)
    return partitions[start : start + TAKEN_EXAMINED_MAX]
