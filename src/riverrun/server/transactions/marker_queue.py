"""The markers that wait for one leader, and the partitions of its pending requests.

A partition is part of one pending request at most, so its markers keep their order. Batches of a
busy partition are parked until its request ends, so that each is looked at once per request of its
own partition, however many wait.

A leader responds when all partitions of a request have committed. One whose last marker was not
committed in time is slow. Slow partitions share a request of their own, and only one such request
is pending, so they take no others with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from riverrun.coordinator.transactions.turn import EndMarkers
from riverrun.model.ids import LeaderEpoch, PartitionIndex

PARTITIONS_PER_REQUEST_MAX: Final = 5000
"""No transaction is added to a request that has this many partitions."""

PartitionKey = tuple[str, int]
"""Topic and partition."""


class MarkerJob(Struct, eq=False):
    """The markers of one transaction. ``left`` has the partitions without theirs."""

    key: tuple[PartitionIndex, str]
    """The coordinator's partition and the transactional id."""
    epoch: LeaderEpoch
    markers: EndMarkers
    written: Callable[[], None]
    left: dict[PartitionKey, None]


class MarkerBatch(Struct, frozen=True, eq=False):
    """Partitions of a job with the same leader."""

    job: MarkerJob
    partitions: tuple[PartitionKey, ...]
    failures: int = 0
    """Attempts in a row that failed."""


class MarkerRequest(Struct, frozen=True, eq=False):
    """A request that has no response yet."""

    batches: tuple[MarkerBatch, ...]
    partitions: dict[PartitionKey, None]
    is_slow: bool


class MarkerQueue:
    """``add``, then ``take`` a request, and ``end`` it once it has a response or failed."""

    def __init__(self, is_current: Callable[[MarkerJob], bool]) -> None:
        """Batches of jobs that are not current any more are dropped."""
        self._is_current = is_current
        self._batches: deque[MarkerBatch] = deque()
        self._parked: dict[PartitionKey, list[MarkerBatch]] = {}
        self._slow_batches: deque[MarkerBatch] = deque()
        self._busy: dict[PartitionKey, None] = {}
        self._slow: dict[PartitionKey, None] = {}
        self._has_slow_request = False
        self.ordinary_requests = 0
        """Pending requests without the one of slow partitions."""

    @property
    def has_batches(self) -> bool:
        """Whether there are batches that ``take`` has not looked at."""
        return bool(self._batches)

    def add(self, batch: MarkerBatch) -> None:
        self._batches.append(batch)

    def take(self) -> MarkerRequest | None:
        """The next request; None if nothing may be sent until another one ends."""
        # The slow ones first, because the others may never end. They are due once in seconds.
        return self._take_slow() or self._take_ordinary() or self._take_slow()

    def note_slow(self, request: MarkerRequest, slow: Iterable[PartitionKey]) -> None:
        """The leader responded, and did not commit the markers of these partitions in time."""
        for key in request.partitions:
            self._slow.pop(key, None)
        self._slow.update(dict.fromkeys(slow))

    def end(self, request: MarkerRequest) -> None:
        """Let later markers of the partitions of a request be taken, in their order."""
        for key in request.partitions:
            del self._busy[key]
        self._batches.extendleft(reversed(self._unpark(request.partitions)))
        if request.is_slow:
            self._has_slow_request = False
            self._batches.extendleft(reversed(self._slow_batches))
            self._slow_batches.clear()
        else:
            self.ordinary_requests -= 1

    def _take_slow(self) -> MarkerRequest | None:
        if self._has_slow_request:
            return None
        taken: list[MarkerBatch] = []
        size = 0
        while self._slow_batches and size < PARTITIONS_PER_REQUEST_MAX:
            batch = self._slow_batches.popleft()
            if self._is_current(batch.job):
                taken.append(batch)
                size += len(batch.partitions)
        self._has_slow_request = bool(taken)
        return self._begin(taken, is_slow=True)

    def _take_ordinary(self) -> MarkerRequest | None:
        taken: list[MarkerBatch] = []
        size = 0
        while self._batches and size < PARTITIONS_PER_REQUEST_MAX:
            batch = self._batches.popleft()
            if not self._is_current(batch.job):
                continue
            free: list[PartitionKey] = []
            slow: list[PartitionKey] = []
            for key in batch.partitions:
                if key in self._busy:
                    one = MarkerBatch(batch.job, (key,), batch.failures)
                    self._parked.setdefault(key, []).append(one)
                elif key in self._slow:
                    slow.append(key)
                else:
                    free.append(key)
            if slow:
                self._slow_batches.append(MarkerBatch(batch.job, tuple(slow), batch.failures))
            if free:
                taken.append(MarkerBatch(batch.job, tuple(free), batch.failures))
                size += len(free)
        self.ordinary_requests += bool(taken)
        return self._begin(taken, is_slow=False)

    def _begin(self, taken: list[MarkerBatch], *, is_slow: bool) -> MarkerRequest | None:
        if not taken:
            return None
        partitions = {key: None for batch in taken for key in batch.partitions}
        self._busy.update(partitions)
        return MarkerRequest(tuple(taken), partitions, is_slow)

    def _unpark(self, partitions: Iterable[PartitionKey]) -> list[MarkerBatch]:
        """Remove the parked batches of partitions. Those of one job become one batch again, unless
        this would change the order in a partition."""
        rounds: list[dict[tuple[MarkerJob, int], list[PartitionKey]]] = []
        for key in partitions:
            for place, batch in enumerate(self._parked.pop(key, ())):
                if place == len(rounds):
                    rounds.append({})
                rounds[place].setdefault((batch.job, batch.failures), []).append(key)
        return [
            MarkerBatch(job, tuple(keys), failures)
            for some in rounds
            for (job, failures), keys in some.items()
        ]
