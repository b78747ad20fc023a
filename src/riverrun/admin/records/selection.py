"""Which partitions ``riverrun consume`` reads, and the offset that it starts at in each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from riverrun.admin.requests import NotFound, find_topic
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Topics by name, or by a pattern that their whole name matches."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"topics that match {self.pattern.pattern}"
        return ", ".join(self.topics)

    async def partitions(self, pool: ConnectionPool) -> list[TopicPartition]:
        """All partitions now. Raises NotFound for a missing name; a pattern may match nothing,
        and never matches internal topics."""
        if self.pattern is None:
            found = [await find_topic(pool, name) for name in self.topics]
        else:
            found = [
                topic
                for topic in (await pool.metadata(None)).topics
                if topic.error_code is ErrorCode.NONE
                and not topic.is_internal
                and self.pattern.fullmatch(topic.name or "")
            ]
        return sorted(
            place(topic.name or "", row.partition_index)
            for topic in found
            for row in topic.partitions
        )


@dataclass(frozen=True, slots=True)
class Start:
    """The start in each partition: a timestamp for ListOffsets, or an offset."""

    time: int | None
    offset: int = 0

    @classmethod
    def earliest(cls) -> Self:
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> Self:
        return cls(LATEST)

    @classmethod
    def at(cls, offset: int) -> Self:
        return cls(None, offset)

    @classmethod
    def before_end(cls, count: int) -> Self:
        return cls(LATEST, -count)

    @classmethod
    def since(cls, timestamp_ms: int) -> Self:
        """At the first record with this timestamp or a later one; at the end if there is none."""
        return cls(timestamp_ms)

    @property
    def for_new_partitions(self) -> Start:
        """All records of a partition that appears later are new."""
        return self if self.time is not None and self.time >= 0 else Start.earliest()

    async def offsets(
        self,
        pool: ConnectionPool,
        places: Sequence[TopicPartition],
        *,
        is_committed_only: bool = False,
    ) -> dict[TopicPartition, int]:
        """With ``is_committed_only``, the end is the last stable offset."""
        if self.time is None:
            ends = await offsets_at(pool, dict.fromkeys(places, LATEST))
            for at, end in ends.items():
                if self.offset > end:
                    raise NotFound(f"{at} ends at offset {end}: there is no {self.offset} yet")
            return dict.fromkeys(places, self.offset)
        wanted = dict.fromkeys(places, self.time)
        found = await offsets_at(pool, wanted, is_committed_only=is_committed_only)
        if without := [at for at in places if found[at] < 0]:
            wanted = dict.fromkeys(without, LATEST)
            found |= await offsets_at(pool, wanted, is_committed_only=is_committed_only)
        if self.offset == 0:
            return found
        earliest = await offsets_at(pool, dict.fromkeys(places, EARLIEST))
        return {at: max(earliest[at], found[at] + self.offset) for at in places}


def place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
