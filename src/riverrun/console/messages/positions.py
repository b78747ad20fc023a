"""Where a selection of messages begins in each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.console.messages.reading import PartitionRange
from riverrun.console.messages.streams import OLDER
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together

ALL: Final = "all"
PARTITIONS_MAX: Final = 2000
"""Partitions that one page merges."""


def places_of(topic: str, partitions: Sequence[int]) -> list[TopicPartition]:
    return [TopicPartition(TopicName(topic), PartitionIndex(index)) for index in partitions]


async def bounds_of(
    pool: ConnectionPool, places: Sequence[TopicPartition], *, is_committed_only: bool
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end of each partition."""
    starts, ends = await run_together(
        [
            offsets_at(pool, dict.fromkeys(places, EARLIEST)),
            offsets_at(pool, dict.fromkeys(places, LATEST), is_committed_only=is_committed_only),
        ]
    )
    return {at: (min(starts[at], ends[at]), ends[at]) for at in places}


async def ranges_from(
    pool: ConnectionPool,
    topic: str,
    partitions: Sequence[int],
    *,
    begin: str,
    offset: int | None,
    time_ms: int | None,
    direction: str,
    is_committed_only: bool,
) -> dict[int, PartitionRange]:
    """``begin`` is latest, earliest, offset or time. A record at the given offset is part of both
    directions; going back from a time, records before it."""
    places = places_of(topic, partitions)
    bounds = await bounds_of(pool, places, is_committed_only=is_committed_only)
    timed: Mapping[TopicPartition, int] = {}
    if begin == "time":
        timed = await offsets_at(pool, dict.fromkeys(places, time_ms or 0))
    found: dict[int, PartitionRange] = {}
    for at, (start, end) in bounds.items():
        match begin:
            case "earliest":
                position = start
            case "offset":
                position = (offset or 0) + (1 if direction == OLDER else 0)
            case "time":
                position = end if timed[at] < 0 else timed[at]
            case _:
                position = end
        found[at.partition] = PartitionRange(start, end, min(max(position, start), end))
    return found


async def ranges_at(
    pool: ConnectionPool, topic: str, positions: Mapping[int, int], *, is_committed_only: bool
) -> dict[int, PartitionRange]:
    """The ranges of a cursor. Records below may have been deleted, and new ones written."""
    places = places_of(topic, list(positions))
    bounds = await bounds_of(pool, places, is_committed_only=is_committed_only)
    return {
        at.partition: PartitionRange(start, end, min(max(positions[at.partition], start), end))
        for at, (start, end) in bounds.items()
    }
