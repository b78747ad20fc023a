"""Even bytes: swap a large replica of a loaded broker for a small one of another.

A swap keeps the counts of replicas as they are, and the counts of each topic if both replicas
belong to one topic or both topics have room. Each replica moves at most once for this goal, and the
search looks at a bounded number of pairs.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from riverrun.placement.planner.board import Board

START_ABOVE: Final = 1.10
"""Bytes are evened only if a broker has more than this multiple of its share."""
STOP_AT: Final = 1.05
GAIN_MIN: Final = 0.001
"""A swap must bring a broker nearer to its share by this part of the share."""
SWAPS_PER_BROKER_MAX: Final = 50
LARGE_EXAMINED_MAX: Final = 48
SMALL_EXAMINED_MAX: Final = 6
STALE_MAX: Final = 256
"""Replicas passed over because they moved already."""
RECEIVERS_EXAMINED_MAX: Final = 6


class Resource(NamedTuple):
    """The value of each partition, the load of each broker, and the broker's fair share."""

    values: array[float]
    loads: list[float]
    fair: list[float]

    def relative(self, broker: int) -> float:
        return self.loads[broker] / self.fair[broker] if self.fair[broker] > 0 else 0.0


def disk_of(board: Board) -> Resource:
    """Disk, by capacity if that is known for every active broker."""
    limits = [board.disk_limits[one] for one in board.active]
    parts = list(board.targets)
    if limits and max(limits) < float("inf"):
        parts = [limit if limit < float("inf") else 0.0 for limit in board.disk_limits]
    return Resource(board.layout.sizes, board.disk, _fair(board, board.disk, parts))


def bytes_in_of(board: Board) -> Resource:
    return Resource(
        board.layout.bytes_in, board.bytes_in, _fair(board, board.bytes_in, board.targets)
    )


def _fair(board: Board, loads: Sequence[float], parts: Sequence[float]) -> list[float]:
    whole = sum(loads[one] for one in board.active)
    all_parts = sum(parts[one] for one in board.active) or 1.0
    fair = [0.0] * len(loads)
    for one in board.active:
        fair[one] = whole * parts[one] / all_parts
    return fair


class ResourceEvener:
    """Evens one resource. Those in ``kept`` were evened before and must stay so."""

    def __init__(self, board: Board, resource: Resource, kept: Sequence[Resource] = ()) -> None:
        self._board = board
        self._resource = resource
        self._kept = kept
        self._sorted: dict[int, tuple[list[int], list[float]]] = {}
        self._by_topic: dict[int, dict[int, list[int]]] = {}
        self._is_moved = bytearray(len(board.replicas))

    def run(self) -> None:
        board, resource = self._board, self._resource
        if all(resource.relative(one) <= START_ABOVE for one in board.active):
            return
        donors = [(-resource.relative(one), one) for one in board.active]
        heapq.heapify(donors)
        for _ in range(SWAPS_PER_BROKER_MAX * len(board.active)):
            if not donors:
                return
            known, donor = heapq.heappop(donors)
            now = -resource.relative(donor)
            if now != known:
                heapq.heappush(donors, (now, donor))
                continue
            if -known <= STOP_AT:
                return
            receivers = heapq.nsmallest(RECEIVERS_EXAMINED_MAX, board.active, resource.relative)
            for receiver in receivers:
                if receiver != donor and self._swap(donor, receiver):
                    heapq.heappush(donors, (-resource.relative(donor), donor))
                    break

    def _swap(self, donor: int, receiver: int) -> bool:
        resource = self._resource
        gap = min(
            resource.loads[donor] - resource.fair[donor],
            resource.fair[receiver] - resource.loads[receiver],
        )
        if gap <= 0:
            return False
        best: tuple[float, int, int] | None = None
        for large, value in self._large(donor, gap):
            for small, other in self._small(receiver, large, value - gap):
                gain = value - other
                if not GAIN_MIN * resource.fair[donor] < gain < 1.6 * gap:
                    continue
                if best is not None and abs(gain - gap) >= best[0]:
                    continue
                if self._is_allowed(large, small, donor, receiver):
                    best = (abs(gain - gap), large, small)
            if best is not None and best[0] < 0.5 * gap:
                break
        if best is None:
            return False
        _, large, small = best
        self._board.move(large, receiver)
        self._board.move(small, donor)
        self._is_moved[large] = self._is_moved[small] = 1
        return True

    def _large(self, broker: int, gap: float) -> Iterator[tuple[int, float]]:
        slots, values = self._candidates(broker)
        at = bisect_left(values, gap)
        found = 0
        for place in [*range(at, len(slots)), *range(at - 1, -1, -1)]:
            slot = slots[place]
            if not self._is_moved[slot] and self._board.replicas[slot] == broker:
                yield slot, values[place]
                found += 1
                if found >= LARGE_EXAMINED_MAX:
                    return

    def _small(self, broker: int, large: int, wanted: float) -> Iterator[tuple[int, float]]:
        """Replicas of the same topic, and those of about the wanted size."""
        board, layout = self._board, self._board.layout
        topic = layout.topic_of[layout.partition_of[large]]
        slots, values = self._candidates(broker)
        same = self._by_topic[broker].get(topic, [])
        nearby = bisect_left(values, wanted)
        start = max(nearby - SMALL_EXAMINED_MAX // 2, 0)
        for choice in (same, slots[start : start + STALE_MAX]):
            found = 0
            for slot in choice:
                if not self._is_moved[slot] and board.replicas[slot] == broker:
                    yield slot, self._resource.values[layout.partition_of[slot]]
                    found += 1
                    if found >= SMALL_EXAMINED_MAX:
                        break

    def _candidates(self, broker: int) -> tuple[list[int], list[float]]:
        found = self._sorted.get(broker)
        if found is None:
            board, layout = self._board, self._board.layout
            values, partition_of = self._resource.values, layout.partition_of
            slots = [s for s in board.slots_of(broker) if not board.is_fixed[partition_of[s]]]
            slots.sort(key=lambda slot: (values[partition_of[slot]], slot))
            found = self._sorted[broker] = (slots, [values[partition_of[slot]] for slot in slots])
            topics: dict[int, list[int]] = {}
            for slot in slots:
                topics.setdefault(layout.topic_of[partition_of[slot]], []).append(slot)
            self._by_topic[broker] = topics
        return found

    def _is_allowed(self, large: int, small: int, donor: int, receiver: int) -> bool:
        board, layout = self._board, self._board.layout
        one, two = layout.partition_of[large], layout.partition_of[small]
        for kept in self._kept:
            change = kept.values[one] - kept.values[two]
            for broker, after in (
                (donor, kept.loads[donor] - change),
                (receiver, kept.loads[receiver] + change),
            ):
                if after > max(kept.fair[broker] * STOP_AT, kept.loads[broker]):
                    return False
        gives, takes = layout.topic_of[one], layout.topic_of[two]
        if gives != takes and not (
            board.gives_topic(gives, donor)
            and board.takes_topic(gives, receiver)
            and board.gives_topic(takes, receiver)
            and board.takes_topic(takes, donor)
        ):
            return False
        return board.fits(large, receiver) and board.fits(small, donor)
