"""Where ``riverrun consume`` ends in each partition: at its current end, or at a time.

A time selects an offset, as in Kafka: the first record with that timestamp or a later one ends its
partition. Timestamps need not be in order, so earlier ones may follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition
from riverrun.ports.clock import Clock
from riverrun.records.record import Record


class RangeEnds:
    """``find`` determines the ends, ``cut`` drops the records behind them.

    The ends are unknown until ``until_ms``: meanwhile, partitions are read as records arrive.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        clock: Clock,
        *,
        is_until_end: bool,
        until_ms: int | None,
        is_committed_only: bool = False,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._is_until_end = is_until_end
        self._until_ms = until_ms
        self._is_committed_only = is_committed_only
        self._ends: dict[TopicPartition, int] = {}
        self.are_known = False

    @property
    def are_due(self) -> bool:
        """The ends can be determined now."""
        is_passed = self._until_ms is not None and self._clock.now_ms() >= self._until_ms
        return self._is_until_end or is_passed

    async def find(self, places: Sequence[TopicPartition]) -> None:
        """Determine the ends of these partitions, if they are due and not known."""
        if not self.are_due:
            return
        new = list(dict.fromkeys(at for at in places if at not in self._ends))
        ends = await offsets_at(
            self._pool, dict.fromkeys(new, LATEST), is_committed_only=self._is_committed_only
        )
        if self._until_ms is not None:
            timed = await offsets_at(self._pool, dict.fromkeys(new, self._until_ms))
            ends = {at: ends[at] if timed[at] < 0 else min(ends[at], timed[at]) for at in new}
        self._ends |= ends
        self.are_known = True

    def before_end(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions of partitions that are not at their end."""
        return {
            at: offset
            for at, offset in positions.items()
            if at not in self._ends or offset < self._ends[at]
        }

    def cut(
        self, at: TopicPartition, records: list[Record], next_offset: int
    ) -> tuple[list[Record], int]:
        """The records before the end of a partition, and the position after them."""
        if at not in self._ends:
            until_ms = self._until_ms
            late = (r.offset for r in records if until_ms is not None and r.timestamp >= until_ms)
            if (first := next(late, None)) is None:
                return records, next_offset
            self._ends[at] = first
        end = self._ends[at]
        return [record for record in records if record.offset < end], min(next_offset, end)

    def total(self, starts: Mapping[TopicPartition, int]) -> int | None:
        """Offsets between these positions and the ends; None if the ends are not known."""
        if not self.are_known:
            return None
        return sum(max(0, self._ends.get(at, start) - start) for at, start in starts.items())
