"""The awaiting side of the coordinator: loading, writing, time, and requests that wait.

``GroupCoordinators`` is all that the node needs: it is told which partitions of
``__consumer_offsets`` this node leads and answers the requests of their groups. Each partition has
a ``ShardRunner``, which writes one batch at a time. A reply leaves when the records that it rests
on are committed. If nobody can say whether a batch came into the log, the partition is loaded anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum
from itertools import count
from typing import Any, Final, TypeVar

import structlog

from riverrun.coordinator.alarm import Alarm
from riverrun.coordinator.hashing import partition_of
from riverrun.coordinator.loading import Loader
from riverrun.coordinator.log import REFUSED, CoordinatorLog, response_code
from riverrun.coordinator.records import TEXT_BYTES_MAX
from riverrun.coordinator.requests import GroupRequests
from riverrun.coordinator.settings import GroupSettings
from riverrun.coordinator.shard import GroupShard
from riverrun.coordinator.turn import Response, Turn, Waiter
from riverrun.coordinator.writing import Batch, Queue
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.model.invariants import state_change
from riverrun.ports.clock import Clock
from riverrun.ports.metrics import Metrics
from riverrun.ports.randomness import Randomness
from riverrun.records.batch import CorruptBatch
from riverrun.wire.stored import UnknownRecord

__all__ = ["CoordinatorLog", "GroupCoordinators"]

log = structlog.get_logger("riverrun.groups")

SLICE_SECONDS: Final = 0.005
RETRY_SECONDS: Final = 1.0
GROUPS_PER_SLICE: Final = 100

A = TypeVar("A")
R = TypeVar("R")


class Status(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    RESIGNED = "resigned"


class ShardRunner:
    """One partition while this node leads it."""

    def __init__(
        self, index: PartitionIndex, held: CoordinatorLog, node: GroupCoordinators
    ) -> None:
        self.index = index
        self.log = held
        self.status = Status.LOADING
        self.shard = GroupShard(node.settings, node.randomness)
        self._node = node
        self._queue = Queue(node.settings.batch_bytes_max)
        self._futures: dict[Waiter, asyncio.Future[Response]] = {}
        self._work: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        self._run(self._load(0.0))

    def resign(self) -> None:
        """Lose the partition: all who wait must look for its new leader."""
        self.status = Status.RESIGNED
        self._stop_work()
        self._drop(ErrorCode.NOT_COORDINATOR)

    def _reload(self) -> None:
        """Nobody knows what the log holds now: ask it."""
        self.status = Status.LOADING
        self._drop(ErrorCode.NOT_COORDINATOR)
        self.shard = GroupShard(self._node.settings, self._node.randomness)
        self._work = None
        self._run(self._load(RETRY_SECONDS))

    def _drop(self, code: ErrorCode) -> None:
        turn = self.turn()
        self.shard.unload(turn)
        self._answer(turn.replies)
        self._queue.clear()
        for waiter in list(self._futures):
            self._fail(waiter, code)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._work is None, f"partition {self.index} is busy"
        self._work = self._node.spawn(work)

    def _stop_work(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None

    async def _load(self, delay: float) -> None:
        await asyncio.sleep(delay)
        clock = self._node.clock
        while True:
            started = clock.monotonic()
            self.shard = GroupShard(self._node.settings, self._node.randomness)
            try:
                loader = await self._replay_log()
                break
            except (OSError, KafkaError, CorruptBatch, UnknownRecord) as error:
                log.error("groups cannot be loaded", partition=self.index, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        turn = self.turn()
        known = self.shard.known_groups()
        for start in range(0, len(known), GROUPS_PER_SLICE):
            turn = self.turn()
            self.shard.revive(turn, known[start : start + GROUPS_PER_SLICE])
            assert not turn.records, "loading writes nothing"
            await asyncio.sleep(0)
        self.status = Status.ACTIVE
        self._work = None
        self._node.arm(self)
        seconds = clock.monotonic() - started
        self._node.loading_seconds.observe(seconds)
        if loader.records:
            log.info(
                "groups loaded",
                partition=self.index,
                groups=len(known),
                offsets=self.shard.offsets.count,
                skipped=loader.skipped,
                seconds=round(seconds, 3),
            )

    async def _replay_log(self) -> Loader:
        clock = self._node.clock
        loader = Loader(self.shard, self.log.start_offset)
        while data := await self.log.read(loader.next_offset):
            before = loader.next_offset
            began = clock.monotonic()
            for _ in loader.replay(data):
                if clock.monotonic() - began > SLICE_SECONDS:
                    await asyncio.sleep(0)
                    began = clock.monotonic()
            if loader.next_offset <= before:
                raise CorruptBatch(f"no whole batch at offset {before}")
            await asyncio.sleep(0)
        return loader

    # Requests

    def turn(self) -> Turn:
        clock = self._node.clock
        return self.shard.turn(clock.monotonic(), clock.now_ms())

    async def ask(self, kind: type[A], group_id: str, act: Callable[[Turn, Waiter], None]) -> A:
        """Let a request act, and wait for its reply."""
        if self._queue.records >= self._node.settings.queue_records_max:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        waiter = self._node.next_waiter()
        turn = self.turn()
        with state_change:
            act(turn, waiter)
            future = self._futures[waiter] = asyncio.get_running_loop().create_future()
            self.finish(turn)
        try:
            answer = await future
        except asyncio.CancelledError:
            if self._futures.pop(waiter, None) is not None and self.status is Status.ACTIVE:
                turn = self.turn()
                self.shard.connection_is_gone(turn, group_id, waiter)
                self.finish(turn)
            raise
        assert isinstance(answer, kind), f"{kind.__name__} expected, not {answer}"
        return answer

    async def settled(self, read: Callable[[], R]) -> R:
        """Read when all that was written before is committed."""
        if self._work is not None:
            waiter = self._node.next_waiter()
            turn = self.turn()
            future = self._futures[waiter] = asyncio.get_running_loop().create_future()
            turn.reply(waiter, None)
            self._queue.put(turn)
            await future
        return read()

    def finish(self, turn: Turn) -> None:
        """Carry out what a turn decided."""
        for note in turn.notes:
            log.info(note.event, group=note.group_id, detail=note.detail)
        if turn.records:
            self.shard.sent(turn.records)
            self._queue.put(turn)
            if self._work is None:
                self._run(self._write())
        else:
            self._answer(turn.replies)
        self._node.arm(self)

    def _answer(self, replies: Iterable[tuple[Waiter, Response]]) -> None:
        for waiter, response in replies:
            future = self._futures.pop(waiter, None)
            if future is not None and not future.done():
                future.set_result(response)

    def _fail(self, waiter: Waiter, code: ErrorCode) -> None:
        future = self._futures.pop(waiter, None)
        if future is not None and not future.done():
            future.set_exception(KafkaError(code))

    # Writing

    async def _write(self) -> None:
        """Write batch after batch until nothing waits. Begins in the next turn of the loop, so
        that all requests of this one share the first batch."""
        while self._queue.entries:
            batch = self._queue.take()
            try:
                await self._append(batch)
            except KafkaError as error:
                if error.code not in REFUSED:
                    self._lost(error)
                    return
                self._refused(batch, response_code(error.code))
            except OSError as error:
                self._lost(error)
                return
            else:
                self._committed(batch)
        self._work = None

    async def _append(self, batch: Batch) -> None:
        if not any(entry.records for entry in batch.entries):
            return
        seconds = self._node.settings.offsets_commit_timeout_ms / 1000
        late = asyncio.get_running_loop().call_later(seconds, self._give_up, batch)
        try:
            await self.log.append(batch.encode(self.log.leader_epoch))
        finally:
            late.cancel()
        self._node.batches.value += 1
        self._node.records.value += len(batch.records())

    def _give_up(self, batch: Batch) -> None:
        """It takes too long. The batch may still be committed: only those who wait stop."""
        for waiter in batch.waiters():
            self._fail(waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _committed(self, batch: Batch) -> None:
        turn = self.turn()
        for entry in batch.entries:
            with state_change:
                self.shard.committed(turn, entry.records)
            if entry.fate.refused is None:
                self._answer(entry.replies)
            else:
                for waiter, _ in entry.replies:
                    self._fail(waiter, entry.fate.refused)
        self.finish(turn)

    def _refused(self, batch: Batch, code: ErrorCode) -> None:
        log.warning("group records were refused", partition=self.index, code=code.name)
        turn = self.turn()
        for entry in batch.entries:
            entry.fate.refused = code
            self.shard.refused(turn, entry.records, code)
            for waiter, _ in entry.replies:
                self._fail(waiter, code)
        self.finish(turn)

    def _lost(self, error: KafkaError | OSError) -> None:
        log.error("group records may be lost", partition=self.index, reason=str(error))
        if self.status is Status.ACTIVE:
            self._reload()


class GroupCoordinators(GroupRequests):
    """All partitions of ``__consumer_offsets`` that this node leads."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
        partitions: Callable[[], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        """``partitions`` tells how many partitions the topic has (or would have); ``failed`` hears
        of what can only be our bug, for then the node must stop."""
        self.settings = settings
        self.clock = clock
        self.randomness = randomness
        self._partitions = partitions
        self._failed = failed
        self._shards: dict[PartitionIndex, ShardRunner] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiters = count(1)
        self._alarm = Alarm(clock, expire=self._expire, credit=self._credit)
        self._declare_metrics(metrics)

    def _declare_metrics(self, metrics: Metrics) -> None:
        self.batches = metrics.counter(
            "riverrun_group_batches_total", "Batches written to __consumer_offsets."
        )
        self.records = metrics.counter(
            "riverrun_group_records_total", "Records written to __consumer_offsets."
        )
        self.stalls = metrics.counter(
            "riverrun_group_stalls_total", "Late wake-ups whose delay was credited to all members."
        )
        self.loading_seconds = metrics.histogram(
            "riverrun_group_loading_seconds", "Time to load a partition of __consumer_offsets."
        )
        metrics.gauge("riverrun_groups", "Groups on this node.", self._count_groups)
        metrics.gauge("riverrun_group_offsets", "Committed offsets.", self._count_offsets)

    def _count_groups(self) -> int:
        return sum(len(runner.shard.groups) for runner in self._shards.values())

    def _count_offsets(self) -> int:
        return sum(runner.shard.offsets.count for runner in self._shards.values())

    # Leadership

    def start(self) -> None:
        """Begin to look for expired offsets."""
        self.spawn(self._expire_offsets())

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None:
        """This node leads a partition from now on: load its groups."""
        known = self._shards.get(index)
        is_loaded = known is not None and known.status is Status.ACTIVE
        if known is not None and is_loaded and held.leader_epoch <= known.log.leader_epoch + 1:
            known.log = held  # the next epoch is ours too: nobody wrote in between
            return
        self.resign(index)
        runner = self._shards[index] = ShardRunner(index, held, self)
        runner.start()

    def resign(self, index: PartitionIndex) -> None:
        """This node does not lead a partition any more."""
        runner = self._shards.pop(index, None)
        if runner is not None:
            runner.resign()

    async def stop(self) -> None:
        for index in list(self._shards):
            self.resign(index)
        self._alarm.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def topics_deleted(self, names: Sequence[str]) -> None:
        for runner in self._shards.values():
            if runner.status is Status.ACTIVE:
                turn = runner.turn()
                runner.shard.topics_deleted(turn, names)
                runner.finish(turn)

    def partition_of(self, group_id: str) -> PartitionIndex:
        return partition_of(group_id, self._partitions())

    def find(self, group_id: str, *, is_empty_allowed: bool = False) -> ShardRunner:
        if (not group_id and not is_empty_allowed) or len(group_id.encode()) > TEXT_BYTES_MAX:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        runner = self._shards.get(self.partition_of(group_id))
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if runner.status is not Status.ACTIVE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runner

    def active(self) -> list[ShardRunner]:
        runners = list(self._shards.values())
        if any(runner.status is not Status.ACTIVE for runner in runners):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runners

    # For the shards

    def next_waiter(self) -> Waiter:
        return Waiter(next(self._waiters))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)

    # Time

    def arm(self, runner: ShardRunner) -> None:
        self._alarm.set(runner.shard.deadlines.next())

    def _expire(self) -> None:
        for runner in self._shards.values():
            if runner.status is Status.ACTIVE:
                turn = runner.turn()
                runner.shard.expire(turn)
                runner.finish(turn)

    def _credit(self, seconds: float) -> None:
        self.stalls.value += 1
        log.warning("late by our own fault", seconds=round(seconds, 3))
        for runner in self._shards.values():
            runner.shard.deadlines.postpone(seconds)

    async def _expire_offsets(self) -> None:
        while True:
            await asyncio.sleep(self.settings.offsets_retention_check_interval_ms / 1000)
            for runner in list(self._shards.values()):
                groups = list(runner.shard.groups)
                for start in range(0, len(groups), GROUPS_PER_SLICE):
                    if runner.status is Status.ACTIVE:
                        turn = runner.turn()
                        some = groups[start : start + GROUPS_PER_SLICE]
                        runner.shard.expire_offsets(turn, some)
                        runner.finish(turn)
                    await asyncio.sleep(0)
