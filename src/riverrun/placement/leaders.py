"""Even leadership over given replicas, by reordering them: no data moves.

Each partition is led by one of its replicas. A broker with too many leaderships hands one to a
replica that has too few, directly or along a chain of partitions (an augmenting path). If any
choice of leaders keeps every broker within its bounds, this finds one.
"""

from __future__ import annotations

from collections.abc import Sequence


class LeaderSpread:
    """``members`` are the possible leaders of each partition, ``leaders`` the current choice."""

    def __init__(
        self,
        members: Sequence[Sequence[int]],
        leaders: list[int],
        counts: list[int] | dict[int, int],
    ) -> None:
        self._members = members
        self._leaders = leaders
        self._counts = counts
        self._led: dict[int, list[int]] = {}
        self._held: dict[int, list[int]] = {}
        for partition, leader in enumerate(leaders):
            self._led.setdefault(leader, []).append(partition)
            for broker in members[partition]:
                self._held.setdefault(broker, []).append(partition)

    def even(
        self, low: Sequence[int] | dict[int, int], high: Sequence[int] | dict[int, int]
    ) -> None:
        """Bring the counts of all brokers within their bounds, as far as that is possible."""
        brokers = sorted(self._held)
        for broker in brokers:
            while self._counts[broker] > high[broker] and self._push(broker, high):
                pass
        for broker in brokers:
            while self._counts[broker] < low[broker] and self._pull(broker, low):
                pass

    def _push(self, start: int, high: Sequence[int] | dict[int, int]) -> bool:
        """Hand one leadership to a broker below its upper bound. A breadth-first search."""
        came: dict[int, tuple[int, int]] = {start: (-1, -1)}
        queue = [start]
        for broker in queue:
            for partition in self._led.get(broker, ()):
                if self._leaders[partition] != broker:
                    continue  # handed over earlier
                for other in self._members[partition]:
                    if other in came:
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

    def _pull(self, start: int, low: Sequence[int] | dict[int, int]) -> bool:
        """Take one leadership from a broker above its lower bound."""
        goes: dict[int, tuple[int, int]] = {start: (-1, -1)}
        queue = [start]
        for broker in queue:
            for partition in self._held.get(broker, ()):
                other = self._leaders[partition]
                if other in goes:
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
        self._leaders[partition] = broker
        self._led.setdefault(broker, []).append(partition)
