"""Offsets and sizes of partitions at one moment, and the rates between two moments.

Leaders report the offsets, and all nodes the sizes of their replicas. A node that does not respond
leaves gaps.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from riverrun.admin.cluster.replica_lag import (
    CLIENT,
    Held,
    Wanted,
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

Answer = tuple[dict[Held, int], list[int]]
"""Values of replicas, and the nodes that did not respond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The state of some topics at one moment."""

    ends_at: Mapping[int, float]
    """When each node reported its end offsets, on a monotonic clock. Nodes answer at different
    times: a first request waits for the connection, and a dead node for its limit."""
    sizes_at: Mapping[int, float]
    """The same for its sizes."""
    leaders: Mapping[TopicPartition, int]
    """-1 for a partition without a leader."""
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    replica_sizes: Mapping[Held, int]
    silent: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """When the end offsets were measured, in the mean."""
        return _mean(self.ends_at.values())

    def ends_seconds(self, partitions: Sequence[TopicPartition]) -> float:
        """When the end offsets of some partitions were measured, in the mean."""
        return _mean(self.ends_at[self.leaders[at]] for at in partitions)

    def sizes_seconds(self, replicas: Sequence[Held]) -> float:
        """The same for the sizes of some replicas."""
        return _mean(self.sizes_at[node] for node, _ in replicas)

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
            _timed(led, partial(_offsets, pool, EARLIEST)),
            _timed(led, partial(_offsets, pool, LATEST)),
            _timed(held, partial(ask_sizes, pool)),
        ]
    )
    (starts, _, _), (ends, _, ends_at), (sizes, _, sizes_at) = found
    return Positions(
        ends_at=ends_at,
        sizes_at=sizes_at,
        leaders={
            place_of(topic, row): row.leader_id for topic in topics for row in topic.partitions
        },
        starts={at: offset for (_, at), offset in starts.items()},
        ends={at: offset for (_, at), offset in ends.items()},
        replica_sizes=sizes,
        silent=tuple(sorted({node for _, silent, _ in found for node in silent})),
    )


async def _offsets(pool: ConnectionPool, time: int, wanted: Wanted) -> Answer:
    return await ask_offsets(pool, wanted, time, replica_id=CLIENT)


async def _timed(
    wanted: Wanted, ask: Callable[[Wanted], Awaitable[Answer]]
) -> tuple[dict[Held, int], list[int], dict[int, float]]:
    """Ask each node by itself. The answers of all, the silent nodes, and the times of answers."""
    found: dict[Held, int] = {}
    silent: list[int] = []
    moments: dict[int, float] = {}

    async def ask_node(node: int) -> None:
        rows, missing = await ask({node: wanted[node]})
        moments[node] = time.monotonic()
        found.update(rows)
        silent.extend(missing)

    await run_together(ask_node(node) for node in sorted(wanted))
    return found, silent, moments


def _reachable(
    pool: ConnectionPool, wanted: Mapping[int, Mapping[str, Sequence[int]]]
) -> dict[int, Mapping[str, Sequence[int]]]:
    return {node: rows for node, rows in wanted.items() if node in pool.cluster.nodes}


def _mean(moments: Iterable[float]) -> float:
    """The mean of some moments, or now."""
    known = list(moments)
    return sum(known) / len(known) if known else time.monotonic()


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
        known = [at for at in partitions if at in now and at in before]
        grown = [max(0, now[at] - before[at]) for at in known]
        seconds = self.now.ends_seconds(known) - self.before.ends_seconds(known)
        return per_second(sum(grown), seconds)

    def bytes_per_second(self, replicas: Sequence[Held]) -> float:
        """Growth on disk, as compressed by producers. A log that shrank, because old segments were
        deleted, counts as 0."""
        before, now = self.before.replica_sizes, self.now.replica_sizes
        known = [at for at in replicas if at in now and at in before]
        grown = [max(0, now[at] - before[at]) for at in known]
        seconds = self.now.sizes_seconds(known) - self.before.sizes_seconds(known)
        return per_second(sum(grown), seconds)


def per_second(count: int, seconds: float) -> float:
    return round(count / max(seconds, SECONDS_MIN), 1)
