"""``riverrun topics list``: topics with their size and rate."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from riverrun.admin.cluster.replica_lag import place_of
from riverrun.admin.tables import ByteCount, Cell, Table
from riverrun.admin.topics.positions import Positions, Rates, ask_positions
from riverrun.client.pool import ConnectionPool
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

SAMPLE_SECONDS = 1.0
"""The time between the two measurements of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic:
    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: int | None
    """None if a leader does not respond."""
    size_bytes: int | None
    records_per_second: float | None = None
    bytes_per_second: float | None = None
    """None unless rates were asked for."""

    def described(self) -> dict[str, object]:
        rates = {
            "records_per_second": self.records_per_second,
            "bytes_per_second": self.bytes_per_second,
        }
        return {
            "name": self.name, "partitions": self.partitions,
            "replication_factor": self.replication_factor, "records": self.records,
            "size_bytes": self.size_bytes, "internal": self.is_internal,
            **({} if self.records_per_second is None else rates),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    topics: tuple[ListedTopic, ...]
    silent: tuple[int, ...]


async def list_topics(
    pool: ConnectionPool,
    patterns: Sequence[re.Pattern[str]],
    *,
    with_internal: bool,
    with_rates: bool,
) -> TopicListing:
    """The topics whose whole name matches a pattern, or all."""
    found = (await pool.metadata(None)).topics
    topics = sorted(
        (
            topic
            for topic in found
            if (with_internal or not topic.is_internal) and is_match(topic.name or "", patterns)
        ),
        key=lambda topic: topic.name or "",
    )
    now = await ask_positions(pool, topics)
    rates = None
    if with_rates:
        await asyncio.sleep(SAMPLE_SECONDS)
        before, now = now, await ask_positions(pool, topics)
        rates = Rates(before=before, now=now)
    rows = tuple(_listed(topic, now, rates) for topic in topics)
    return TopicListing(topics=rows, silent=now.silent)


def is_match(name: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return not patterns or any(pattern.fullmatch(name) for pattern in patterns)


def _listed(topic: MetadataResponseTopic, now: Positions, rates: Rates | None) -> ListedTopic:
    partitions = [place_of(topic, row) for row in topic.partitions]
    led = [(now.leaders[at], at) for at in partitions]
    return ListedTopic(
        name=topic.name or "",
        is_internal=topic.is_internal,
        partitions=len(partitions),
        replication_factor=max((len(row.replica_nodes) for row in topic.partitions), default=0),
        records=now.records(partitions),
        size_bytes=now.size_bytes(partitions),
        records_per_second=None if rates is None else rates.records_per_second(partitions),
        bytes_per_second=None if rates is None else rates.bytes_per_second(led),
    )


def topics_table(topics: Sequence[ListedTopic], *, with_rates: bool, empty: str) -> Table:
    def row(topic: ListedTopic) -> list[Cell]:
        size = None if topic.size_bytes is None else ByteCount(topic.size_bytes)
        cells: list[Cell] = [
            topic.name, topic.partitions, topic.replication_factor, topic.records, size,
        ]  # fmt: skip
        if with_rates:
            growth = topic.bytes_per_second
            cells += [topic.records_per_second, None if growth is None else ByteCount(growth)]
        return cells

    columns = ["topic", "partitions", "replicas", "records", "size"]
    if with_rates:
        columns += ["records/s", "bytes/s"]
    return Table(columns=columns, rows=[row(topic) for topic in topics], empty=empty)
