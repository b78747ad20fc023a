"""The implementation of ``riverrun consume``: reads partitions, alone or in a group, and prints.

A printed record counts as consumed, and only then is its offset committed. So a record may be
printed twice after a crash, but is never skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from riverrun.cli.records.descriptors import Writer
from riverrun.cli.records.formats import Formatter
from riverrun.cli.support.interrupts import cancel_all, stop_on_signals
from riverrun.cli.support.output import counted
from riverrun.cli.support.session import NotFound, find_topic, open_pool
from riverrun.client.consumer_member import ConsumerMember
from riverrun.client.fetcher import WAIT_MS, FetchedRecords, Fetcher
from riverrun.client.offsets import committed_offsets, offsets_at
from riverrun.client.partitions import EARLIEST, LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RetryPolicy
from riverrun.model.errors import KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition

if TYPE_CHECKING:
    from riverrun.cli.records.decoding import RecordDecoder

RETRY = RetryPolicy(tries_max=1000, total_s_max=60.0)
"""The restart of a node must not end its consumers."""
BEGINNING_SECONDS = 5.0
COMMIT_S = 1.0
LOOK_S = 10.0
"""How often to look for new partitions."""
GOODBYE_S_MAX = 3.0
STANDARD_OUTPUT = 1


@dataclass(frozen=True, slots=True)
class Start:
    """The start in each partition: a timestamp for ListOffsets, or an offset."""

    time: int | None
    offset: int = 0

    @classmethod
    def earliest(cls) -> Start:
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> Start:
        return cls(LATEST)

    @classmethod
    def at(cls, offset: int) -> Start:
        return cls(None, offset)

    @classmethod
    def before_end(cls, count: int) -> Start:
        return cls(LATEST, -count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePlan:
    """The parsed options."""

    topic: str
    group: str | None
    start: Start
    partitions: tuple[int, ...]
    max_messages: int | None
    timeout_s: float | None
    is_until_end: bool
    form_record: Formatter
    is_quiet: bool
    decoder: RecordDecoder | None = None
    """Decodes keys and values that name a registered schema."""

    @property
    def retry(self) -> RetryPolicy:
        """A short wait for records also limits the wait for a node. But a group may have to be
        found and joined first, and a leader elected."""
        if self.timeout_s is None:
            return RETRY
        total = min(RETRY.total_s_max, max(self.timeout_s, BEGINNING_SECONDS))
        return RetryPolicy(tries_max=RETRY.tries_max, total_s_max=total)


class ConsumeResult(Enum):
    """Why it ended."""

    STOPPED = auto()
    UNREAD = auto()
    SILENT = auto()
    ENOUGH = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    outcome: ConsumeResult
    count: int


async def print_records(pool: ConnectionPool, bootstrap: str, plan: ConsumePlan) -> Ended:
    """Run until there is a reason to end."""
    await find_topic(pool, plan.topic)
    writer = Writer(STANDARD_OUTPUT)
    with stop_on_signals() as stop:
        if plan.group is None:
            printing = _Printing(pool, plan, writer)
            return await _race(printing, [], stop, writer)
        # Heartbeats must not wait behind the long polls of the other connection.
        async with open_pool(bootstrap, plan.retry) as group_pool:
            member = ConsumerMember(group_pool, plan.group, [plan.topic])
            printing = _Printing(pool, plan, writer, member)
            try:
                return await _race(printing, [member.keep_alive()], stop, writer)
            finally:
                with contextlib.suppress(KafkaError, OSError):
                    async with asyncio.timeout(GOODBYE_S_MAX):
                        await printing.commit()
                        await member.leave()


async def _race(
    printing: _Printing, beside: Sequence[Any], stop: asyncio.Event, writer: Writer
) -> Ended:
    """Print until it is done, interrupted, its reader is gone, or a background task fails."""
    reading = asyncio.ensure_future(printing.run())
    stopped = asyncio.ensure_future(stop.wait())
    unread = asyncio.ensure_future(writer.wait_reader_closed())
    tasks = [reading, stopped, unread, *map(asyncio.ensure_future, beside)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
    for task in done:
        task.result()
    if reading in done:
        return Ended(outcome=reading.result(), count=printing.count)
    outcome = ConsumeResult.STOPPED if stopped in done else ConsumeResult.UNREAD
    return Ended(outcome=outcome, count=printing.count)


class _Printing:
    """The loop that fetches and prints."""

    def __init__(
        self,
        pool: ConnectionPool,
        plan: ConsumePlan,
        writer: Writer,
        member: ConsumerMember | None = None,
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._writer = writer
        self._member = member
        wait_ms = WAIT_MS
        if plan.timeout_s is not None:
            wait_ms = min(wait_ms, max(1, int(plan.timeout_s * 1000)))
        self._fetcher = Fetcher(pool, wait_ms=wait_ms, lost=self._tell_lost)
        self._ends: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self._loop = asyncio.get_running_loop()
        self._look_at = self._commit_at = 0.0
        self.count = 0

    async def run(self) -> ConsumeResult:
        if self._member is None:
            await self._begin_alone()
        else:
            await self._rejoin(self._member)
        quiet_since = self._loop.time()
        while not self._is_at_end():
            if self._member is not None and self._member.must_rejoin.is_set():
                await self._rejoin(self._member)
                quiet_since = self._loop.time()
            portions = await self._next()
            try:
                for portion in portions:
                    if await self._print(portion):
                        return ConsumeResult.ENOUGH
            except BrokenPipeError:
                return ConsumeResult.UNREAD
            now = self._loop.time()
            if any(portion.records for portion in portions):
                quiet_since = now
            elif self._plan.timeout_s is not None and now - quiet_since >= self._plan.timeout_s:
                return ConsumeResult.SILENT
            await self._keep_up(now)
        return ConsumeResult.ENOUGH

    async def commit(self) -> None:
        """Commit records printed since the last commit; no effect without a group."""
        if self._member is None or not self._uncommitted:
            return
        await self._member.commit(self._uncommitted)
        # Kept until here: a consumer stopped during the wait commits again before it leaves.
        self._uncommitted = {}

    async def _next(self) -> list[FetchedRecords]:
        if self._fetcher.positions:
            return await self._fetcher.poll()
        # Other members have all partitions; the next rebalance may assign some.
        assert self._member is not None, "without a group there is always a partition"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await self._member.must_rejoin.wait()
        return []

    async def _print(self, portion: FetchedRecords) -> bool:
        """Returns True when the limit is reached."""
        plan, records, next_offset = self._plan, portion.records, portion.next_offset
        if plan.is_until_end:
            end = self._ends[portion.partition]
            records = [record for record in records if record.offset < end]
        if plan.max_messages is not None and len(records) > plan.max_messages - self.count:
            records = records[: plan.max_messages - self.count]
            next_offset = records[-1].offset + 1
        if plan.decoder is not None:
            decode = plan.decoder.decode
            records = await asyncio.to_thread(decode, str(portion.partition), records)
        topic, partition = portion.partition.topic, portion.partition.partition
        form = plan.form_record
        await self._writer.write(b"".join([form(topic, partition, record) for record in records]))
        self.count += len(records)
        if self._member is not None:
            self._uncommitted[portion.partition] = next_offset
        return plan.max_messages is not None and self.count >= plan.max_messages

    def _is_at_end(self) -> bool:
        if not self._plan.is_until_end:
            return False
        positions = self._fetcher.positions
        return all(positions.get(at, 0) >= end for at, end in self._ends.items())

    async def _keep_up(self, now: float) -> None:
        if self._member is not None:
            if now >= self._commit_at:
                self._commit_at = now + COMMIT_S
                await self.commit()
        elif not self._plan.partitions and not self._plan.is_until_end and now >= self._look_at:
            self._look_at = now + LOOK_S
            await self._look_for_new()

    async def _begin_alone(self) -> None:
        places = await self._places()
        for wanted in self._plan.partitions:
            if wanted not in [at.partition for at in places]:
                count = counted(len(places), "partition")
                raise NotFound(
                    f"topic {self._plan.topic} has {count}, numbered from 0; there is no {wanted}"
                )
        if self._plan.partitions:
            places = [at for at in places if at.partition in self._plan.partitions]
        self._fetcher.seek(await self._starts(places))
        self._look_at = self._loop.time() + LOOK_S
        if self._plan.is_until_end:
            self._ends = await offsets_at(self._pool, dict.fromkeys(places, LATEST))

    async def _look_for_new(self) -> None:
        """Partitions added later are read from their start."""
        known = self._fetcher.positions
        new = [at for at in await self._places() if at not in known]
        if new:
            starts = await offsets_at(self._pool, dict.fromkeys(new, EARLIEST))
            self._fetcher.seek({**known, **starts})

    async def _rejoin(self, member: ConsumerMember) -> None:
        """Give up the current partitions and take the new assignment."""
        self._fetcher.seek({})
        await self.commit()
        assignment = await member.join()
        places = [
            _place(topic, index) for topic, indexes in assignment.items() for index in indexes
        ]
        committed = await committed_offsets(self._pool, self._group)
        known = {at: committed[at] for at in places if at in committed}
        fresh = await self._starts([at for at in places if at not in committed])
        # Committed at once, because the next owner would otherwise start at a later end.
        self._uncommitted = dict(fresh)
        self._fetcher.seek({**known, **fresh})
        await self.commit()
        numbers = ", ".join(str(at.partition) for at in sorted(places)) or "none"
        self._tell(
            f"group {self._group}, generation {member.generation}: reading partitions {numbers} "
            f"of {self._plan.topic}"
        )

    @property
    def _group(self) -> str:
        assert self._plan.group is not None, "only members of a group ask"
        return self._plan.group

    async def _places(self) -> list[TopicPartition]:
        topic = await find_topic(self._pool, self._plan.topic)
        return sorted(_place(self._plan.topic, row.partition_index) for row in topic.partitions)

    async def _starts(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        start = self._plan.start
        if start.time is None:
            ends = await offsets_at(self._pool, dict.fromkeys(places, LATEST))
            for at, end in ends.items():
                if start.offset > end:
                    raise NotFound(f"{at} ends at offset {end}: there is no {start.offset} yet")
            return dict.fromkeys(places, start.offset)
        found = await offsets_at(self._pool, dict.fromkeys(places, start.time))
        if start.offset == 0:
            return found
        earliest = await offsets_at(self._pool, dict.fromkeys(places, EARLIEST))
        return {at: max(earliest[at], found[at] + start.offset) for at in places}

    def _tell_lost(self, at: TopicPartition, old: int, new: int) -> None:
        self._tell(f"offset {old} of {at} was deleted; continuing at {new}, the log start offset")

    def _tell(self, text: str) -> None:
        if not self._plan.is_quiet:
            print(f"riverrun: {text}", file=sys.stderr, flush=True)


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
