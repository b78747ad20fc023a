"""Offsets and sizes of partitions at one moment, and the rates between two moments.

Leaders report the offsets, and all nodes the sizes of their replicas. A node that does not respond
leaves gaps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.admin.cluster.replica_lag import (
    CLIENT,
    Held,
    ask_offsets,
    ask_sizes,
    leaders_by_node,
    place_of,
    replicas_by_node,
)
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

SECONDS_MIN = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The state of some topics at one moment."""

    seconds: float
    """When it was measured, on a monotonic clock."""
    leaders: Mapping[TopicPartition, int]
    """-1 for a partition without a leader."""
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    replica_sizes: Mapping[Held, int]
    silent: tuple[int, ...]

    def records(self, partitions: Sequence[TopicPartition]) -> int | None:
        """Compaction and transactions leave gaps, so there may be fewer. None if one is unknown."""
        if any(at not in self.ends or at not in self.starts for at in partitions):
            return None
        return sum(self.ends[at] - self.starts[at] for at in partitions)

    def size_bytes(self, partitions: Sequence[TopicPartition]) -> int | None:
        """The size of the leaders' replicas, so each record counts once."""
        sizes = [self.replica_sizes.get((self.leaders[at], at)) for at in partitions]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None


async def ask_positions(pool: ConnectionPool, topics: Sequence[MetadataResponseTopic]) -> Positions:
    """One round of requests to all nodes."""
    led = _reachable(pool, leaders_by_node(topics))
    held = _reachable(pool, replicas_by_node(topics))
    found = await run_together(
        [
            ask_offsets(pool, led, EARLIEST, replica_id=CLIENT),
            ask_offsets(pool, led, LATEST, replica_id=CLIENT),
            ask_sizes(pool, held),
        ]
    )
    (starts, _), (ends, _), (sizes, _) = found
    return Positions(
        seconds=time.monotonic(),
        leaders={
            place_of(topic, row): row.leader_id for topic in topics for row in topic.partitions
        },
        starts={at: offset for (_, at), offset in starts.items()},
        ends={at: offset for (_, at), offset in ends.items()},
        replica_sizes=sizes,
        silent=tuple(sorted({node for _, silent in found for node in silent})),
    )


def _reachable(
    pool: ConnectionPool, wanted: Mapping[int, Mapping[str, Sequence[int]]]
) -> dict[int, Mapping[str, Sequence[int]]]:
    return {node: rows for node, rows in wanted.items() if node in pool.cluster.nodes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The growth of partitions between two moments, per second."""

    before: Positions
    now: Positions

    @property
    def seconds(self) -> float:
        return self.now.seconds - self.before.seconds

    def records_per_second(self, partitions: Sequence[TopicPartition]) -> float:
        """A partition that is new or was unknown counts from its next measurement."""
        before, now = self.before.ends, self.now.ends
        grown = [max(0, now[at] - before[at]) for at in partitions if at in now and at in before]
        return per_second(sum(grown), self.seconds)

    def bytes_per_second(self, replicas: Sequence[Held]) -> float:
        """Growth on disk, as compressed by producers. A log that shrank, because old segments were
        deleted, counts as 0."""
        before, now = self.before.replica_sizes, self.now.replica_sizes
        grown = [max(0, now[at] - before[at]) for at in replicas if at in now and at in before]
        return per_second(sum(grown), self.seconds)


def per_second(count: int, seconds: float) -> float:
    return round(count / max(seconds, SECONDS_MIN), 1)
