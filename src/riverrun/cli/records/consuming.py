"""The implementation of ``riverrun consume``: reads partitions, alone or in a group, and prints.

A printed record counts as consumed, and only then is its offset committed. So a record may be
printed twice after a crash, but is never skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from riverrun.admin.records.formats import Formatter, PrintedRecord
from riverrun.admin.records.selection import Start, TopicSelection, place
from riverrun.admin.requests import NotFound
from riverrun.admin.tables import counted
from riverrun.cli.records.descriptors import Writer, is_file
from riverrun.cli.records.range_ends import RangeEnds
from riverrun.cli.support.interrupts import cancel_all, stop_on_signals
from riverrun.cli.support.progress import ProgressLine, share_in_words
from riverrun.cli.support.session import open_pool
from riverrun.client.consumer_member import ConsumerMember
from riverrun.client.fetcher import WAIT_MS, FetchedRecords, Fetcher
from riverrun.client.offsets import committed_offsets
from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import UNKNOWN, RetryPolicy
from riverrun.model.errors import KafkaError
from riverrun.model.ids import TopicPartition
from riverrun.ports.clock import Clock, SystemClock
from riverrun.records.record import Record

if TYPE_CHECKING:
    from riverrun.cli.records.decoding import RecordDecoder

RETRY = RetryPolicy(tries_max=1000, total_s_max=60.0)
"""The restart of a node must not end its consumers."""
BEGINNING_SECONDS = 5.0
COMMIT_S = 1.0
LOOK_S = 3.0
"""How often to look for new partitions and topics."""
IDLE_S = 0.1
GOODBYE_S_MAX = 3.0
STANDARD_OUTPUT = 1
PARTITIONS_NAMED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumePlan:
    """The parsed options."""

    selection: TopicSelection
    group: str | None
    start: Start
    partitions: tuple[int, ...]
    max_messages: int | None
    timeout_s: float | None
    is_until_end: bool
    until_ms: int | None
    form_record: Formatter
    is_quiet: bool
    is_committed_only: bool = False
    """read_committed: no records of open or aborted transactions."""
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


async def print_records(
    pool: ConnectionPool, bootstrap: str, plan: ConsumePlan, *, clock: Clock | None = None
) -> Ended:
    """Run until there is a reason to end."""
    found = await plan.selection.partitions(pool)
    writer = Writer(STANDARD_OUTPUT)
    clock = clock or SystemClock()
    with stop_on_signals() as stop:
        if plan.group is None:
            printing = _Printing(pool, plan, writer, clock, found)
            return await _race(printing, [], stop, writer)
        # Heartbeats must not wait behind the long polls of the other connection.
        async with open_pool(bootstrap, plan.retry) as group_pool:
            member = ConsumerMember(group_pool, plan.group, _topics_of(found))
            printing = _Printing(pool, plan, writer, clock, found, member)
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
        printing.close()
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
        clock: Clock,
        found: Sequence[TopicPartition],
        member: ConsumerMember | None = None,
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._writer = writer
        self._found = list(found)
        self._found_first = frozenset(found)
        self._member = member
        wait_ms = WAIT_MS
        if plan.timeout_s is not None:
            wait_ms = min(wait_ms, max(1, int(plan.timeout_s * 1000)))
        self._fetcher = Fetcher(
            pool,
            wait_ms=wait_ms,
            is_committed_only=plan.is_committed_only,
            lost=self._tell_lost,
        )
        self._ends = RangeEnds(
            pool,
            clock,
            is_until_end=plan.is_until_end,
            until_ms=plan.until_ms,
            is_committed_only=plan.is_committed_only,
        )
        self._uncommitted: dict[TopicPartition, int] = {}
        self._loop = asyncio.get_running_loop()
        self._look_at = self._loop.time() + LOOK_S
        self._commit_at = 0.0
        self._started = self._loop.time()
        # Beside records on a terminal, or in a pager, progress would only disturb.
        is_wanted = not plan.is_quiet and is_file(STANDARD_OUTPUT)
        self._line = ProgressLine(self._started, is_wanted=is_wanted)
        self._total: int | None = None
        self.count = 0

    async def run(self) -> ConsumeResult:
        await self._begin()
        quiet_since = self._loop.time()
        while not self._is_finished():
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
            self._line.update(now, self._progress)
            if any(portion.records for portion in portions):
                quiet_since = now
            elif self._plan.timeout_s is not None and now - quiet_since >= self._plan.timeout_s:
                return ConsumeResult.SILENT
            await self._keep_up(now)
        return ConsumeResult.ENOUGH

    def close(self) -> None:
        """Remove the line of progress."""
        self._line.clear()

    async def commit(self) -> None:
        """Commit records printed since the last commit; no effect without a group."""
        if self._member is None or not self._uncommitted:
            return
        try:
            await self._member.commit(self._uncommitted)
        except KafkaError as error:
            if error.code not in UNKNOWN or not await self._drop_deleted():
                raise
            return
        # Kept until here: a consumer stopped during the wait commits again before it leaves.
        self._uncommitted = {}

    async def _next(self) -> list[FetchedRecords]:
        if self._fetcher.positions:
            try:
                return await self._fetcher.poll()
            except KafkaError as error:
                if error.code not in UNKNOWN or not await self._drop_deleted():
                    raise
                return []
        # Other members have all partitions, no topic matches yet, or all partitions are at their
        # end: the next rebalance or look may add some.
        if self._member is None:
            await asyncio.sleep(IDLE_S)
            return []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._member.must_rejoin.wait()
        return []

    async def _print(self, portion: FetchedRecords) -> bool:
        """Returns True when the limit is reached."""
        limit = self._plan.max_messages
        records, next_offset = self._ends.cut(
            portion.partition, portion.records, portion.next_offset
        )
        if limit is not None and len(records) > limit - self.count:
            records = records[: limit - self.count]
            next_offset = records[-1].offset + 1
        if self._plan.decoder is not None:
            decode = self._plan.decoder.decode
            records = await asyncio.to_thread(decode, str(portion.partition), records)
        await self._writer.write(b"".join(self._lines(portion, records)))
        self.count += len(records)
        if self._member is not None:
            self._uncommitted[portion.partition] = next_offset
        return limit is not None and self.count >= limit

    def _lines(self, portion: FetchedRecords, records: list[Record]) -> Iterable[bytes]:
        """The only place where keys and values become text."""
        topic, partition = portion.partition.topic, portion.partition.partition
        form, epochs = self._plan.form_record, portion.leader_epochs
        place_of_epoch = 0
        for record in records:
            while (
                place_of_epoch + 1 < len(epochs) and epochs[place_of_epoch + 1][0] <= record.offset
            ):
                place_of_epoch += 1
            epoch = epochs[place_of_epoch][1] if epochs else -1
            yield form(PrintedRecord(topic, partition, epoch, record))

    def _is_finished(self) -> bool:
        """Stop reading partitions at their end. Returns whether all of them, or those that the
        group assigned to us, are there."""
        self._fetcher.seek(self._ends.before_end(self._fetcher.positions))
        must_rejoin = self._member is not None and self._member.must_rejoin.is_set()
        return self._ends.are_known and not self._fetcher.positions and not must_rejoin

    async def _keep_up(self, now: float) -> None:
        if self._member is not None and now >= self._commit_at:
            self._commit_at = now + COMMIT_S
            await self.commit()
        if self._ends.are_known:
            return
        if self._ends.are_due:
            await self._ends.find([*self._found, *self._fetcher.positions])
        elif not self._plan.partitions and now >= self._look_at:
            self._look_at = now + LOOK_S
            await self._look_for_new()

    async def _begin(self) -> None:
        await self._ends.find(self._found)
        if not self._found:
            self._note_no_match()
        if self._member is not None:
            await self._rejoin(self._member)
            return
        places = self._found
        for wanted in self._plan.partitions:
            if wanted not in [at.partition for at in places]:
                count = counted(len(places), "partition")
                raise NotFound(
                    f"topic {self._plan.selection} has {count}, numbered from 0; "
                    f"there is no {wanted}"
                )
        if self._plan.partitions:
            places = [at for at in places if at.partition in self._plan.partitions]
        starts = await self._starts(places)
        self._total = self._ends.total(starts)
        self._fetcher.seek(starts)

    async def _starts(self, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Partitions and topics that were added since our start are read from their start."""
        start, first = self._plan.start, self._found_first
        is_committed_only = self._plan.is_committed_only
        known = await start.offsets(
            self._pool,
            [at for at in places if at in first],
            is_committed_only=is_committed_only,
        )
        added = [at for at in places if at not in first]
        return known | await start.for_new_partitions.offsets(
            self._pool, added, is_committed_only=is_committed_only
        )

    def _note_no_match(self) -> None:
        if self._ends.are_known:
            raise NotFound(f"there are no {self._plan.selection}")
        self._tell(f"there are no {self._plan.selection} yet; waiting for one")

    async def _look_for_new(self) -> None:
        selection = self._plan.selection
        if self._member is not None and selection.pattern is None:
            return  # the leader of the group looks for new partitions
        found = await self._pool.try_again(lambda: selection.partitions(self._pool))
        new = [at for at in found if at not in self._found]
        topics, known = _topics_of(found), _topics_of(self._found)
        for name in topics:
            if name not in known:
                self._tell(f"topic {name} is new")
        self._found = found
        if self._member is not None:
            if topics != known:
                self._member.subscribe(topics)
        elif new:
            self._fetcher.seek({**self._fetcher.positions, **await self._starts(new)})

    async def _drop_deleted(self) -> bool:
        """Stop reading partitions that do not exist any more. Returns whether there were any."""
        selection = self._plan.selection
        if selection.pattern is None:
            return False
        found = await self._pool.try_again(lambda: selection.partitions(self._pool))
        positions = self._fetcher.positions
        gone = [at for at in [*positions, *self._uncommitted] if at not in found]
        for name in _topics_of(gone):
            self._tell(f"topic {name} was deleted")
        self._fetcher.seek({at: offset for at, offset in positions.items() if at in found})
        self._uncommitted = {at: n for at, n in self._uncommitted.items() if at in found}
        self._found = [at for at in self._found if at in found]
        if self._member is not None and gone:
            self._member.subscribe(_topics_of(found))
        return bool(gone)

    async def _rejoin(self, member: ConsumerMember) -> None:
        """Give up the current partitions and take the new assignment."""
        self._fetcher.seek({})
        await self.commit()
        assignment = await member.join()
        places = [place(topic, index) for topic, rows in assignment.items() for index in rows]
        committed = await committed_offsets(self._pool, self._group, places)
        known = {at: committed[at] for at in places if at in committed}
        fresh = await self._starts([at for at in places if at not in committed])
        await self._ends.find(places)
        self._total = self._ends.total({**known, **fresh})
        # Committed at once, because the next owner would otherwise start at a later end.
        self._uncommitted = dict(fresh)
        self._fetcher.seek({**known, **fresh})
        await self.commit()
        self._tell(f"group {self._group}, generation {member.generation}: reading {_named(places)}")

    @property
    def _group(self) -> str:
        assert self._plan.group is not None, "only members of a group ask"
        return self._plan.group

    def _progress(self, now: float) -> str:
        text = counted(self.count, "record")
        if not self._total:
            return text
        left = self._ends.total(self._fetcher.positions) or 0
        share = share_in_words(max(0.0, 1 - left / self._total), now - self._started)
        return f"{text}; {share}"

    def _tell_lost(self, at: TopicPartition, old: int, new: int) -> None:
        self._tell(f"offset {old} of {at} was deleted; continuing at {new}, the log start offset")

    def _tell(self, text: str) -> None:
        if not self._plan.is_quiet:
            self._line.clear()
            print(f"riverrun: {text}", file=sys.stderr, flush=True)


def _topics_of(places: Iterable[TopicPartition]) -> list[str]:
    return sorted({at.topic for at in places})


def _named(places: Sequence[TopicPartition]) -> str:
    """Partitions in words: those of one topic by number."""
    topics = _topics_of(places)
    if len(topics) > 1:
        shown = [str(at) for at in sorted(places)[:PARTITIONS_NAMED_MAX]]
        more = len(places) - len(shown)
        return ", ".join(shown) + (f" and {more} more partitions" if more else "")
    numbers = ", ".join(str(at.partition) for at in sorted(places)) or "none"
    return f"partitions {numbers}" + (f" of {topics[0]}" if topics else "")
