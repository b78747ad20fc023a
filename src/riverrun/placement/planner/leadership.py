"""Even preferred leaders, first in each topic and then in all. Replicas are only reordered."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator

from riverrun.placement.leaders import LeaderSpread
from riverrun.placement.planner.board import EPSILON, Board
from riverrun.placement.planner.layout import MISSING


class LeaderPlan:
    """Chooses the preferred leader of each partition among its planned replicas."""

    def __init__(self, board: Board, *, not_leading: Iterable[int] = ()) -> None:
        self._board = board
        excluded = frozenset(not_leading)
        self.may_lead = [
            is_active and at not in excluded for at, is_active in enumerate(board.is_active)
        ]
        self._able = [at for at, may_lead in enumerate(self.may_lead) if may_lead]
        brokers = board.layout.brokers
        whole = sum(brokers[at].weight for at in self._able) or 1.0
        self.shares = [
            one.weight / whole if may_lead else 0.0
            for one, may_lead in zip(brokers, self.may_lead, strict=True)
        ]
        self.leaders = self._first()
        self._topic_leads: dict[int, Counter[int]] = {}
        self.passed_for_bytes_out: set[int] = set()

    def _first(self) -> array[int]:
        """The first replica, or the first that may lead; MISSING if none may."""
        board, starts = self._board, self._board.layout.starts
        leaders = array("i")
        for partition in range(board.layout.partitions):
            first = board.replicas[starts[partition]]
            if first == MISSING or not self.may_lead[first]:
                first = next(iter(self[partition]), MISSING)
            leaders.append(first)
        return leaders

    def __getitem__(self, partition: int) -> Iterator[int]:
        """The possible leaders of a partition."""
        board = self._board
        starts = board.layout.starts
        may_lead = self.may_lead
        return iter(
            [
                broker
                for broker in board.replicas[starts[partition] : starts[partition + 1]]
                if broker != MISSING and may_lead[broker]
            ]
        )

    def spread(self) -> None:
        if self._able:
            for topic in range(len(self._board.layout.topics)):
                self._spread_topic(topic)
            self._spread_totals()

    def pass_for_bytes_out(self, partition: int, broker: int) -> None:
        self._count_topic(partition, self.leaders[partition], broker)
        self.leaders[partition] = broker
        self.passed_for_bytes_out.add(partition)

    def bounds(self, whole: int, broker: int) -> tuple[int, int]:
        """The fewest and the most of that many leaderships that a broker should have."""
        fair = whole * self.shares[broker]
        return int(fair + EPSILON), -int(-(fair - EPSILON) // 1)

    def _spread_topic(self, topic: int) -> None:
        layout = self._board.layout
        first, last = layout.topic_starts[topic], layout.topic_starts[topic + 1]
        counts = Counter(self.leaders[first:last])
        counts.pop(MISSING, None)
        whole = counts.total()
        looked_at = self._able if whole >= len(self._able) else list(counts)
        if all(self._is_within(counts[at], whole, at) for at in looked_at):
            return
        numbers = [p for p in range(first, last) if self._is_free(p)]
        members = [list(self[partition]) for partition in numbers]
        leaders = [self.leaders[partition] for partition in numbers]
        held = sorted({broker for one in members for broker in one})
        bounds = {broker: self.bounds(whole, broker) for broker in held}
        LeaderSpread(members, leaders, counts).even(
            held,
            {broker: low for broker, (low, _) in bounds.items()},
            {broker: high for broker, (_, high) in bounds.items()},
        )
        for partition, leader in zip(numbers, leaders, strict=True):
            self.leaders[partition] = leader

    def _is_within(self, count: int, whole: int, broker: int) -> bool:
        low, high = self.bounds(whole, broker)
        return low <= count <= high

    def _is_free(self, partition: int) -> bool:
        return not self._board.layout.is_pinned[partition] and self.leaders[partition] != MISSING

    def _spread_totals(self) -> None:
        board, layout = self._board, self._board.layout
        counts = [0] * len(layout.brokers)
        for leader in self.leaders:
            if leader != MISSING:
                counts[leader] += 1
        whole = sum(counts)
        bounds = [self.bounds(whole, broker) for broker in range(len(counts))]
        if all(low <= counts[at] <= high for at, (low, high) in enumerate(bounds)):
            return
        spread = LeaderSpread(
            self,
            self.leaders,
            counts,
            held=lambda broker: [layout.partition_of[slot] for slot in board.slots_of(broker)],
            allows=self.keeps_topic_even,
            changed=self._count_topic,
        )
        order = sorted(self._able, key=lambda at: (bounds[at][1] - counts[at], at))
        spread.even(order, [low for low, _ in bounds], [high for _, high in bounds])

    def _leads(self, broker: int) -> Counter[int]:
        found = self._topic_leads.get(broker)
        if found is None:
            layout = self._board.layout
            found = self._topic_leads[broker] = Counter(
                layout.topic_of[layout.partition_of[slot]]
                for slot in self._board.slots_of(broker)
                if self.leaders[layout.partition_of[slot]] == broker
            )
        return found

    def keeps_topic_even(self, partition: int, old: int, new: int) -> bool:
        """Whether the topic's leaders stay even if the partition passes from one to another."""
        layout = self._board.layout
        if layout.is_pinned[partition]:
            return False
        topic = layout.topic_of[partition]
        whole = layout.topic_starts[topic + 1] - layout.topic_starts[topic]
        return (
            self._leads(old)[topic] > self.bounds(whole, old)[0]
            and self._leads(new)[topic] < self.bounds(whole, new)[1]
        )

    def _count_topic(self, partition: int, old: int, new: int) -> None:
        topic = self._board.layout.topic_of[partition]
        for broker, step in ((old, -1), (new, 1)):
            if broker in self._topic_leads:
                self._topic_leads[broker][topic] += step
