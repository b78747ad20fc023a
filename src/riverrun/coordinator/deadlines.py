"""Deadlines by key. They are cheap to move, because every heartbeat moves one.

Moving a deadline to a later time is one write to a dict. The heap is corrected when the earlier
time comes up. So a key has few entries in the heap, and a heartbeat costs no heap operation.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """A priority queue of deadlines."""

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._queued: dict[K, float] = {}
        self._sequence = 0
        self._credit = 0.0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Set or move a deadline."""
        at -= self._credit
        self._at[key] = at
        queued = self._queued.get(key)
        if queued is None or at < queued:
            self._push(key, at)

    def cancel(self, key: K) -> None:
        self._at.pop(key, None)

    def get(self, key: K) -> float | None:
        at = self._at.get(key)
        return None if at is None else at + self._credit

    def postpone(self, seconds: float) -> None:
        """Move all deadlines, after a stall of this process."""
        self._credit += seconds

    def next(self) -> float | None:
        """The earliest deadline, or None."""
        self._settle()
        return self._heap[0][0] + self._credit if self._heap else None

    def pop_due(self, now: float) -> K | None:
        """Remove and return the key with the earliest deadline, if that has passed."""
        self._settle()
        if not self._heap or self._heap[0][0] + self._credit > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._at[key]
        return key

    def _push(self, key: K, at: float) -> None:
        self._sequence += 1
        self._queued[key] = at
        heapq.heappush(self._heap, (at, self._sequence, key))

    def _settle(self) -> None:
        """Remove stale entries from the head of the heap."""
        while self._heap:
            at, _, key = self._heap[0]
            wanted = self._at.get(key)
            if self._queued.get(key) != at:
                heapq.heappop(self._heap)
            elif wanted is None:
                heapq.heappop(self._heap)
                del self._queued[key]
            elif wanted > at:
                heapq.heappop(self._heap)
                self._push(key, wanted)
            else:
                return
