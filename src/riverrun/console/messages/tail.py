"""The live tail: new messages as server-sent events, sampled so that a busy topic costs little.

The partitions are polled a few times a second, with a limit on bytes. A tail that falls behind goes
on near the end. At most so many messages a second are sent; others are counted. Nothing is
buffered: while a reader does not read, the tail does not poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from riverrun.client.fetcher import FetchWish, aborted_in, fetch_many
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.console.messages.payloads import Message
from riverrun.console.messages.positions import places_of
from riverrun.console.messages.streams import FoundRecord, items_of
from riverrun.console.problems import partition_failure
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.aio import run_together
from riverrun.records.batch import CorruptBatch, batches
from riverrun.wire.messages.fetch_response import PartitionData

POLL_SECONDS: Final = 0.25
SAMPLE_SECONDS: Final = 1.0
POLL_BYTES_MAX: Final = 512 * 1024
PARTITION_BYTES_MAX: Final = 128 * 1024
BEHIND_MAX: Final = 5000
"""Offsets. A tail that is further behind skips to the end."""
KEPT_BEHIND: Final = 200
TAIL_SECONDS_MAX: Final = 1800.0
"""A forgotten page must not poll the cluster for days."""

Render = Callable[[Sequence[FoundRecord]], Awaitable[list[Message]]]


class TailSample(Struct, frozen=True, kw_only=True):
    """Counts since the tail began. ``dropped`` were not sent because there were too many."""

    seen: int
    sent: int
    dropped: int


class RateLimit:
    """How many of some messages may be sent, at most so many in a second."""

    def __init__(self, per_second: int, now: float) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._at = now

    def take(self, count: int, now: float) -> int:
        grown = self._left + (now - self._at) * self._per_second
        self._left, self._at = min(grown, float(self._per_second)), now
        taken = min(count, int(self._left))
        self._left -= taken
        return taken


def evenly(records: Sequence[FoundRecord], count: int) -> list[FoundRecord]:
    """So many of the records, evenly spread; the newest one is among them."""
    if count >= len(records):
        return list(records)
    return [records[(place + 1) * len(records) // count - 1] for place in range(count)]


class TopicTail:
    """``open`` finds the ends, ``events`` follows them."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        positions: dict[TopicPartition, int],
        *,
        text: str,
        rate_max: int,
        render: Render,
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._positions = positions
        self._needle = text.encode("utf-8", "surrogateescape").lower()
        self._rate_max = rate_max
        self._render = render
        self._seen = self._sent = self._dropped = 0

    @classmethod
    async def open(
        cls,
        pool: ConnectionPool,
        topic: str,
        partitions: Sequence[int],
        *,
        text: str,
        rate_max: int,
        render: Render,
    ) -> TopicTail:
        wanted = dict.fromkeys(places_of(topic, partitions), LATEST)
        ends = await offsets_at(pool, wanted, is_committed_only=True)
        return cls(pool, topic, ends, text=text, rate_max=rate_max, render=render)

    async def events(self, seconds_max: float = TAIL_SECONDS_MAX) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end_at = loop.time() + seconds_max
        limit = RateLimit(self._rate_max, loop.time())
        sample_at = loop.time()
        reason = "The live view ended after 30 minutes."
        while loop.time() < end_at:
            try:
                found = await self._pool.try_again(self._poll)
                chosen = evenly(found, limit.take(len(found), loop.time()))
                messages = await self._render(chosen)
            except (KafkaError, OSError) as error:
                reason = str(error)
                break
            self._sent += len(messages)
            self._dropped += len(found) - len(messages)
            for message in messages:
                yield event("message", message)
            if loop.time() >= sample_at:
                sample_at = loop.time() + SAMPLE_SECONDS
                yield event("sample", self._sample())
            await asyncio.sleep(POLL_SECONDS)
        yield event("sample", self._sample())
        yield event("end", {"reason": reason})

    def _sample(self) -> TailSample:
        return TailSample(seen=self._seen, sent=self._sent, dropped=self._dropped)

    async def _poll(self) -> list[FoundRecord]:
        by_leader: dict[int, dict[TopicPartition, FetchWish]] = {}
        for at, offset in self._positions.items():
            leader = await self._pool.leader(at.topic, at.partition)
            by_leader.setdefault(leader, {})[at] = FetchWish(offset, PARTITION_BYTES_MAX)
        responses = await run_together(
            fetch_many(
                self._pool,
                leader,
                wishes,
                wait_ms=0,
                is_committed_only=True,
                bytes_max=POLL_BYTES_MAX,
            )
            for leader, wishes in by_leader.items()
        )
        found: list[FoundRecord] = []
        outside: list[TopicPartition] = []
        for response in responses:
            for at, row in response.items():
                if row.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    outside.append(at)
                else:
                    found += self._take(at, row)
        if outside:
            # The records were deleted, or a new leader has fewer of them.
            wanted = dict.fromkeys(outside, LATEST)
            self._positions |= await offsets_at(self._pool, wanted, is_committed_only=True)
        found.sort(key=lambda one: one.record.timestamp)
        return found

    def _take(self, at: TopicPartition, row: PartitionData) -> list[FoundRecord]:
        if row.error_code is not ErrorCode.NONE:
            raise partition_failure(row.error_code, at, "Read")
        data, position = row.records or b"", self._positions[at]
        reached = max([position, *(header.next_offset for _, header in batches(data))])
        try:
            items = list(
                items_of(data, at.partition, position, reached, aborted_in(row), self._needle)
            )
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{at}: {error}") from None
        self._seen += sum(item.covers for item in items)
        behind = row.last_stable_offset - reached
        if behind > BEHIND_MAX:
            skipped = behind - KEPT_BEHIND
            self._seen += skipped
            self._dropped += skipped
            reached += skipped
        # To the end of the dict: a response is filled in order, and no partition may starve.
        del self._positions[at]
        self._positions[at] = reached
        return [item.found for item in items if item.found is not None]


def event(name: str, data: object) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
