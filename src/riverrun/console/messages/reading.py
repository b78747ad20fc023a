"""Pages of messages over all partitions of a topic, in the order of their times.

The partitions are merged by the time of their next record, so a page has the newest records of a
topic, or the oldest ones behind a position. Within a partition the order is that of the offsets,
whatever the times say. Every record is on exactly one page of a direction.

The work of one page is bounded in records, bytes and seconds. A page that reached a limit is not
complete, and its cursor continues from there.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from riverrun.client.fetcher import FetchWish, aborted_in, fetch_many
from riverrun.client.offsets import offsets_at
from riverrun.client.partitions import EARLIEST
from riverrun.client.pool import ConnectionPool
from riverrun.console.messages.payloads import listed_bytes
from riverrun.console.messages.streams import (
    OLDER,
    FoundRecord,
    PartitionStream,
    StreamItem,
)
from riverrun.console.problems import partition_failure
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.records.batch import CorruptBatch
from riverrun.wire.messages.fetch_response import PartitionData

RECORDS_MAX: Final = 50_000
BYTES_MAX: Final = 32 * 1024 * 1024
SECONDS_MAX: Final = 3.0
CHUNK_BYTES_MIN: Final = 16 * 1024
CHUNK_BYTES_MAX: Final = 1024 * 1024
RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
WINDOW_FILTERED: Final = 2000
"""Offsets of a first chunk with a filter, where most records are not shown."""
WINDOW_MIN: Final = 4


class ScanLimits(Struct, frozen=True, kw_only=True):
    """How much work one page may take."""

    records: int = RECORDS_MAX
    bytes: int = BYTES_MAX
    seconds: float = SECONDS_MAX
    listed_bytes: int | None = None
    """Payloads of the messages that are found, as a list shows them."""


class PartitionRange(Struct, frozen=True):
    """The readable log of a partition, and where to begin."""

    start: int
    end: int
    position: int


class ScannedPage(Struct, kw_only=True):
    """``before`` and ``after`` are the positions at both ends of the page."""

    found: list[FoundRecord]
    before: dict[int, int]
    after: dict[int, int]
    scanned: int = 0
    scanned_bytes: int = 0
    is_complete: bool = True
    """Whether the page is full, or there is nothing left."""
    is_at_start: bool = False
    is_at_end: bool = False


class TopicScan:
    """Reads one topic in one direction."""

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        ranges: Mapping[int, PartitionRange],
        *,
        direction: str,
        text: str = "",
        is_committed_only: bool = True,
        page_size: int = 50,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._topic = topic
        self._is_older = direction == OLDER
        self._is_committed_only = is_committed_only
        self._now = now
        needle = text.encode("utf-8", "surrogateescape").lower()
        count = max(1, len(ranges))
        window = WINDOW_FILTERED if needle else max(WINDOW_MIN, 2 * page_size // count)
        chunk_bytes = min(max(BYTES_MAX // 2 // count, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
        self._streams = {
            partition: PartitionStream(
                partition,
                direction=direction,
                start=one.start,
                end=one.end,
                position=one.position,
                needle=needle,
                window=window,
                bytes_max=chunk_bytes,
            )
            for partition, one in ranges.items()
        }
        self._heap: list[tuple[int, int, int]] = []
        """Time and partition of the next items."""
        self._waiting: list[int] = list(self._streams)
        """Partitions without an item, those that wait longest first."""
        self._bytes = 0

    @property
    def positions(self) -> dict[int, int]:
        return {stream.partition: stream.position for stream in self._streams.values()}

    async def page(self, limit: int, limits: ScanLimits | None = None) -> ScannedPage:
        """The next messages, at most ``limit``. Raises KafkaError and OSError."""
        limits = limits or ScanLimits()
        page = ScannedPage(found=[], before=self.positions, after={})
        give_up_at = self._now() + limits.seconds
        bytes_before = self._bytes
        listed = 0
        while len(page.found) < limit:
            await self._fill(give_up_at, bytes_before + limits.bytes)
            if not self._heap:
                page.is_complete = not self._waiting
                break
            item = self._pop()
            page.scanned += item.covers
            if item.found is not None:
                page.found.append(item.found)
                listed += listed_bytes(item.found)
            if limits.listed_bytes is not None and listed >= limits.listed_bytes:
                page.is_complete = len(page.found) >= limit
                break
            is_over = self._now() >= give_up_at or self._bytes - bytes_before >= limits.bytes
            if page.scanned >= limits.records or (is_over and self._waiting):
                page.is_complete = len(page.found) >= limit
                break
        page.after = self.positions
        page.scanned_bytes = self._bytes - bytes_before
        page.is_at_start = all(stream.is_at_start for stream in self._streams.values())
        page.is_at_end = all(stream.is_at_end for stream in self._streams.values())
        return page

    def _pop(self) -> StreamItem:
        *_, partition = heapq.heappop(self._heap)
        stream = self._streams[partition]
        item = stream.pop()
        self._enter(stream)
        return item

    def _enter(self, stream: PartitionStream) -> None:
        """Put a stream where it belongs: among those with a next item, or with none yet."""
        head = stream.head
        if head is not None:
            # Both directions are exactly opposite, also among equal timestamps.
            sign = -1 if self._is_older else 1
            order = (sign * head.timestamp, sign * stream.partition, stream.partition)
            heapq.heappush(self._heap, order)
        elif stream.needs_data:
            self._waiting.append(stream.partition)

    async def _fill(self, give_up_at: float, bytes_max: int) -> None:
        """Fetch until every partition has a next item, so that the order is right.

        At a limit, partitions without one are left out for now. At least one has an item then, so
        there is progress.
        """
        while self._waiting:
            is_over = self._now() >= give_up_at or self._bytes >= bytes_max
            if is_over and self._heap:
                return
            waiting, self._waiting = self._waiting, []
            before = self._bytes
            await self._pool.try_again(partial(self._fetch, waiting))
            for partition in waiting:
                self._enter(self._streams[partition])
            if is_over and self._bytes == before:
                return

    async def _fetch(self, partitions: Sequence[int]) -> None:
        by_leader: dict[int, dict[TopicPartition, FetchWish]] = {}
        for partition in partitions:
            stream = self._streams[partition]
            if not stream.needs_data:
                continue  # a repeated fetch: other leaders have responded before
            wish = stream.wish()
            leader = await self._pool.leader(self._topic, partition)
            at = TopicPartition(TopicName(self._topic), PartitionIndex(partition))
            by_leader.setdefault(leader, {})[at] = FetchWish(wish.offset, wish.bytes_max)
        await run_together(self._fetch_from(leader, wishes) for leader, wishes in by_leader.items())

    async def _fetch_from(self, leader: int, wishes: Mapping[TopicPartition, FetchWish]) -> None:
        rows = await fetch_many(
            self._pool,
            leader,
            wishes,
            wait_ms=0,
            is_committed_only=self._is_committed_only,
            bytes_max=RESPONSE_BYTES_MAX,
        )
        has_data = any(row.records for row in rows.values())
        outside: list[TopicPartition] = []
        for at, row in rows.items():
            if row.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                outside.append(at)
            else:
                self._take(at, row, is_alone=not has_data or len(rows) == 1)
        if outside:
            starts = await offsets_at(self._pool, dict.fromkeys(outside, EARLIEST))
            for at, start in starts.items():
                self._move(at, start, wishes[at].offset)

    def _move(self, at: TopicPartition, start: int, wanted: int) -> None:
        """Retention deleted the wanted records, or a new leader has fewer of them."""
        stream = self._streams[at.partition]
        if start > wanted:
            stream.start_moved(start)
        else:
            stream.feed(b"", (), is_alone=True)

    def _take(self, at: TopicPartition, row: PartitionData, *, is_alone: bool) -> None:
        stream = self._streams[at.partition]
        if row.error_code is not ErrorCode.NONE:
            raise partition_failure(row.error_code, at, "Read")
        data = row.records or b""
        self._bytes += len(data)
        try:
            stream.feed(data, aborted_in(row), is_alone=is_alone)
        except CorruptBatch as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{at}: {error}") from None
