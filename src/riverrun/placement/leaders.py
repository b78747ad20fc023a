"""Even leadership over given replicas, by reordering them: no data moves.

Each partition is led by one of its replicas. A broker with too many leaderships hands one to a
replica that has too few, directly or along a chain of partitions (an augmenting path). If any
choice of leaders keeps every broker within its bounds, this finds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from typing import Final, Protocol

EDGES_MAX: Final = 50_000
"""Steps of one search for a chain. A cluster that needs longer ones is left slightly uneven."""


class PossibleLeaders(Protocol):
    """The possible leaders of each partition."""

    def __getitem__(self, partition: int, /) -> Iterable[int]: ...


class HeldPartitions(Protocol):
    """The partitions that a broker could lead."""

    def __call__(self, broker: int, /) -> Iterable[int]: ...


Bounds = Sequence[int] | Mapping[int, int]
Counts = MutableSequence[int] | dict[int, int]


def _anything(partition: int, old: int, new: int) -> bool:
    return True


def _nothing(partition: int, old: int, new: int) -> None:
    return None


class LeaderSpread:
    """Changes ``leaders`` and ``counts`` in place.

    ``allows`` says whether a partition may pass from one broker to another, and ``changed`` is told
    of each that does.
    """

    def __init__(
        self,
        members: PossibleLeaders,
        leaders: MutableSequence[int],
        counts: Counts,
        *,
        held: HeldPartitions | None = None,
        allows: Callable[[int, int, int], bool] = _anything,
        changed: Callable[[int, int, int], None] = _nothing,
    ) -> None:
        self._members = members
        self._leaders = leaders
        self._counts = counts
        self._allows = allows
        self._changed = changed
        self._led: dict[int, list[int]] = {}
        for partition, leader in enumerate(leaders):
            self._led.setdefault(leader, []).append(partition)
        self._held = held if held is not None else self._held_by_all()

    def _held_by_all(self) -> HeldPartitions:
        found: dict[int, list[int]] = {}
        for partition in range(len(self._leaders)):
            for broker in self._members[partition]:
                found.setdefault(broker, []).append(partition)
        return lambda broker: found.get(broker, ())

    def even(self, brokers: Iterable[int], low: Bounds, high: Bounds) -> None:
        """Bring the counts of brokers within their bounds, as far as that is possible."""
        known = list(brokers)
        for broker in known:
            if self._counts[broker] > high[broker]:
                self._hand_over(broker, high)
            while self._counts[broker] > high[broker] and self._push(broker, high):
                pass
        for broker in known:
            while self._counts[broker] < low[broker] and self._pull(broker, low):
                pass

    def _hand_over(self, broker: int, high: Bounds) -> None:
        """Hand leaderships directly to replicas with room: one pass, before any search."""
        counts = self._counts
        for partition in list(self._led.get(broker, ())):
            if counts[broker] <= high[broker]:
                return
            if self._leaders[partition] != broker:
                continue
            for other in self._members[partition]:
                if counts[other] < high[other] and self._allows(partition, broker, other):
                    counts[other] += 1
                    counts[broker] -= 1
                    self._lead(partition, other)
                    break

    def _push(self, start: int, high: Bounds) -> bool:
        """Hand one leadership to a broker below its upper bound. A breadth-first search."""
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}
        queue = [start]
        edges = 0
        for broker in queue:
            for partition in self._led.get(broker, ()):
                if self._leaders[partition] != broker:
                    continue  # handed over earlier
                edges += 1
                if edges > EDGES_MAX:
                    return False
                for other in self._members[partition]:
                    if other in came or not self._allows(partition, broker, other):
                        continue
                    came[other] = (broker, partition)
                    if self._counts[other] < high[other]:
                        self._apply_to(other, came)
                        return True
                    queue.append(other)
        return False

    def _apply_to(self, end: int, came: dict[int, tuple[int, int]]) -> None:
        self._counts[end] += 1
        broker, partition = came[end]
        while partition >= 0:
            self._lead(partition, end)
            end = broker
            broker, partition = came[end]
        self._counts[end] -= 1

    def _pull(self, start: int, low: Bounds) -> bool:
        """Take one leadership from a broker above its lower bound."""
        goes: dict[int, tuple[int, int]] = {start: (-1, -1)}
        queue = [start]
        edges = 0
        for broker in queue:
            for partition in self._held(broker):
                edges += 1
                if edges > EDGES_MAX:
                    return False
                other = self._leaders[partition]
                if other < 0 or other in goes or not self._allows(partition, other, broker):
                    continue
                goes[other] = (broker, partition)
                if self._counts[other] > low[other]:
                    self._apply_from(other, goes)
                    return True
                queue.append(other)
        return False

    def _apply_from(self, begin: int, goes: dict[int, tuple[int, int]]) -> None:
        self._counts[begin] -= 1
        broker, partition = goes[begin]
        while partition >= 0:
            self._lead(partition, broker)
            begin = broker
            broker, partition = goes[begin]
        self._counts[begin] += 1

    def _lead(self, partition: int, broker: int) -> None:
        old = self._leaders[partition]
        self._leaders[partition] = broker
        self._changed(partition, old, broker)
        self._led.setdefault(broker, []).append(partition)
