"""Sizes and rates of topics. They are measured for the rows of a page, not for all topics.

A rate is the growth between the requests of a user. Until these are some seconds apart, riverrun
nodes are asked for the rates in their history, which are means of ten seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final, NamedTuple

from riverrun.admin.cluster.replica_lag import leaders_by_node, place_of
from riverrun.admin.node_facts import NodeSeries, ask_facts
from riverrun.admin.topics.admin import ask_setting
from riverrun.admin.topics.positions import Positions, ask_positions
from riverrun.client.pool import ConnectionPool
from riverrun.console.cluster_facts import SharedFacts, TopicState
from riverrun.console.clusters import ConnectedCluster
from riverrun.ports.aio import run_together
from riverrun.wire.messages.metadata_response import MetadataResponseTopic

ALL_SECONDS: Final = 10.0
"""How long the measures of all topics are kept."""
SAMPLE_SECONDS: Final = 1.0
GAP_SECONDS_MIN: Final = 1.0
STEADY_SECONDS_MIN: Final = 5.0
"""Producers send in bursts, so the growth in a shorter time is no good estimate."""
WINDOW_SECONDS: Final = 30.0
SAMPLES_MAX: Final = 4
TOPICS_MAX: Final = 20_000
HISTORY_ROWS_MAX: Final = 100
CLEANUP_POLICY: Final = "cleanup.policy"
RATE_NAMES: Final = ("messages_in", "bytes_in")


class TopicMeasure(NamedTuple):
    """None where a leader does not respond, or for a rate that is not known yet."""

    records: int | None = None
    size: int | None = None
    messages_in: float | None = None
    bytes_in: float | None = None


class TopicLook(NamedTuple):
    """The sum of a topic's end offsets and of its bytes, with the times of the measurements."""

    end: int
    end_at: float
    size: int
    size_at: float


class TopicGrowth(NamedTuple):
    """Records and bytes per second since an earlier look; None if there is none."""

    records: float | None = None
    bytes: float | None = None
    seconds: float = 0.0


class RateBook:
    """Remembers the positions of topics between requests. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[TopicLook]] = {}

    def add(self, topic: str, look: TopicLook) -> TopicGrowth:
        """Note a look at a topic. Returns its growth since an earlier one."""
        samples = self._samples.get(topic)
        if samples is None:
            if len(self._samples) >= TOPICS_MAX:
                del self._samples[next(iter(self._samples))]
            samples = self._samples[topic] = deque(maxlen=SAMPLES_MAX)
        while samples and look.end_at - samples[0].end_at > WINDOW_SECONDS:
            samples.popleft()
        first = samples[0] if samples else None
        if not samples or look.end_at - samples[-1].end_at >= GAP_SECONDS_MIN:
            samples.append(look)
        if first is None:
            return TopicGrowth()
        seconds, size_seconds = look.end_at - first.end_at, look.size_at - first.size_at
        if min(seconds, size_seconds) < GAP_SECONDS_MIN:
            return TopicGrowth()
        # A topic that was created again begins at 0, and old segments are deleted.
        return TopicGrowth(
            max(0, look.end - first.end) / seconds,
            max(0, look.size - first.size) / size_seconds,
            seconds,
        )


class TopicMeasures:
    """Measures topics for one user."""

    def __init__(self, connected: ConnectedCluster) -> None:
        self._connected = connected
        self._pool = connected.pool

    async def of(self, topics: Sequence[TopicState]) -> dict[str, TopicMeasure]:
        """The measures of a few topics."""
        rows = [topic.row for topic in topics]
        positions = await ask_positions(self._pool, rows)
        grown = await self._grown(rows, positions)
        found = _measures(rows, positions, grown)
        unsteady = [row for row in rows if grown[row.name or ""].seconds < STEADY_SECONDS_MIN]
        if unsteady and len(unsteady) <= HISTORY_ROWS_MAX:
            for name, (records, size) in (await self._history(unsteady)).items():
                found[name] = found[name]._replace(messages_in=records, bytes_in=size)
        return found

    async def of_all(
        self, topics: Sequence[TopicState], *, with_rates: bool
    ) -> dict[str, TopicMeasure]:
        """The measures of all topics, at most ten seconds old. The first rates take a second."""

        async def make() -> dict[str, TopicMeasure]:
            rows = [topic.row for topic in topics]
            positions = await ask_positions(self._pool, rows)
            grown = await self._grown(rows, positions)
            if with_rates and any(one.records is None for one in grown.values()):
                await asyncio.sleep(SAMPLE_SECONDS)
                positions = await ask_positions(self._pool, rows)
                grown = await self._grown(rows, positions)
            return _measures(rows, positions, grown)

        return await self._connected.results.get(("all topics", with_rates), ALL_SECONDS, make)

    async def _grown(
        self, rows: Iterable[MetadataResponseTopic], positions: Positions
    ) -> dict[str, TopicGrowth]:
        book: RateBook = await self._connected.results.get("rate book", inf, _new_book)
        found: dict[str, TopicGrowth] = {}
        for row in rows:
            places = [place_of(row, partition) for partition in row.partitions]
            size = positions.size_bytes(places)
            name = row.name or ""
            if positions.records(places) is None or size is None:
                found[name] = TopicGrowth()
                continue
            look = TopicLook(
                end=sum(positions.ends[at] for at in places),
                end_at=positions.ends_seconds(places),
                size=size,
                size_at=positions.sizes_seconds([(positions.leaders[at], at) for at in places]),
            )
            found[name] = book.add(name, look)
        return found

    async def _history(
        self, rows: Sequence[MetadataResponseTopic]
    ) -> dict[str, tuple[float, float]]:
        """Records and bytes per second of topics, as the leaders of their partitions know them. A
        topic without traffic has no history."""
        nodes = await SharedFacts(self._connected).rates()  # those that keep a history
        found: dict[str, tuple[float, float]] = {}

        async def ask(row: MetadataResponseTopic) -> None:
            leaders = [node for node in leaders_by_node([row]) if node in nodes]
            query = {"series": RATE_NAMES, "minutes": 1, "topic": row.name}
            answers = await ask_facts(self._pool, leaders, "history", query, NodeSeries)
            if leaders and len(answers) == len(leaders):
                series = answers.values()
                found[row.name or ""] = (
                    sum(one.newest("messages_in") or 0.0 for one in series),
                    sum(one.newest("bytes_in") or 0.0 for one in series),
                )

        await run_together(ask(row) for row in rows)
        return found


def _measures(
    rows: Iterable[MetadataResponseTopic],
    positions: Positions,
    grown: Mapping[str, TopicGrowth],
) -> dict[str, TopicMeasure]:
    found = {}
    for row in rows:
        name = row.name or ""
        places = [place_of(row, partition) for partition in row.partitions]
        found[name] = TopicMeasure(
            positions.records(places),
            positions.size_bytes(places),
            grown[name].records,
            grown[name].bytes,
        )
    return found


async def _new_book() -> RateBook:
    return RateBook()


async def ask_policies(pool: ConnectionPool, names: Sequence[str]) -> Mapping[str, str]:
    """The clean-up policies of topics that the user may see."""
    return await ask_setting(pool, names, CLEANUP_POLICY)
