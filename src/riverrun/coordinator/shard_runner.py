"""One partition of an internal topic while this node leads it: load, append, reply.

The runner executes the turns of a shard of groups or of transactions. It appends one batch at a
time and sends a reply once the records of its turn are committed. If an append fails in a way that
leaves the batch's fate unknown, the runner drops the shard's state and loads the partition again.

    LOADING ──log replayed──▶ ACTIVE ──leadership lost──▶ RESIGNED
       ▲                        │
       └──append outcome unknown┘
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from enum import Enum
from itertools import count
from typing import Any, Final, Generic, TypeVar

import structlog
from msgspec import Struct

from riverrun.coordinator.deadline_timer import DeadlineTimer
from riverrun.coordinator.loading import Loader
from riverrun.coordinator.log import REFUSED, CoordinatorLog, response_code
from riverrun.coordinator.metrics import ShardMetrics
from riverrun.coordinator.shard_kind import AppendTimedOut, S, ShardKind, TurnResults, Waiter
from riverrun.coordinator.write_queue import WriteBatch, WriteQueue
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.model.invariants import state_change
from riverrun.ports.aio import OwnedTasks, Yielder
from riverrun.ports.clock import Clock
from riverrun.records.batch import CorruptBatch
from riverrun.wire.stored import UnknownRecord

log = structlog.get_logger("riverrun.coordinator")

RETRY_SECONDS: Final = 1.0
IDS_PER_TURN: Final = 100

R = TypeVar("R")


class ShardStatus(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    RESIGNED = "resigned"


class ShardContext(Struct, Generic[S], frozen=True, kw_only=True):
    """The objects that all shards of one kind share on a node."""

    kind: ShardKind[S]
    clock: Clock
    metrics: ShardMetrics
    timer: DeadlineTimer
    tasks: OwnedTasks
    carry_out: Callable[[ShardRunner[S], Any], None]
    """Carries out the effects of a turn other than its records and replies."""


class ShardRunner(Generic[S]):
    """Executes the turns of one shard."""

    def __init__(
        self, index: PartitionIndex, held: CoordinatorLog, context: ShardContext[S]
    ) -> None:
        self.index = index
        self.log = held
        self.status = ShardStatus.LOADING
        self.shard = context.kind.new_shard()
        self._context = context
        self._kind = context.kind
        self._queue = WriteQueue(context.kind.limits.batch_bytes_max, context.kind.encode)
        self._waiters = count(1)
        self._futures: dict[Waiter, asyncio.Future[Any]] = {}
        self._task: asyncio.Task[None] | None = None
        """The load or the sequence of appends that is running; at most one of them."""

    def start(self) -> None:
        self._run(self._load(0.0))

    def resign(self) -> None:
        """Stop after a loss of leadership. Pending requests must go to the new leader."""
        self.status = ShardStatus.RESIGNED
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._drop(ErrorCode.NOT_COORDINATOR)

    def _reload(self) -> None:
        """Start again from the log, because the shard may differ from it."""
        self.status = ShardStatus.LOADING
        self._drop(ErrorCode.NOT_COORDINATOR)
        self.shard = self._kind.new_shard()
        self._task = None
        self._run(self._load(RETRY_SECONDS))

    def _drop(self, code: ErrorCode) -> None:
        """Fail all pending requests."""
        turn = self.turn()
        self.shard.unload(turn)
        self._send(turn.replies)
        self._queue.clear()
        for waiter in list(self._futures):
            self._fail(waiter, KafkaError(code))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._task is None, f"partition {self.index} is busy"
        self._task = self._context.tasks.start(work)

    # Loading

    async def _load(self, delay: float) -> None:
        await asyncio.sleep(delay)
        context = self._context
        while True:
            started = context.clock.monotonic()
            self.shard = self._kind.new_shard()
            try:
                loader = await self._replay_log()
                break
            except (OSError, KafkaError, CorruptBatch, UnknownRecord) as error:
                log.error(
                    f"{self._kind.name}s cannot be loaded", partition=self.index, error=str(error)
                )
                await asyncio.sleep(RETRY_SECONDS)
        known = self.shard.known_ids()
        yielder = Yielder(context.clock)
        restored: list[Any] = []
        for start in range(0, len(known), IDS_PER_TURN):
            turn = self.turn()
            self.shard.restore(turn, known[start : start + IDS_PER_TURN])
            assert not turn.records, "loading writes nothing"
            restored.append(turn)
            await yielder.step()
        self.status = ShardStatus.ACTIVE
        self._task = None
        for turn in restored:
            context.carry_out(self, turn)
        self.arm()
        seconds = context.clock.monotonic() - started
        context.metrics.loading_seconds.observe(seconds)
        if loader.records:
            log.info(
                f"{self._kind.name}s loaded",
                partition=self.index,
                **self.shard.counts(),
                skipped=loader.skipped,
                seconds=round(seconds, 3),
            )

    async def _replay_log(self) -> Loader:
        loader = Loader(self.shard, self.log.start_offset, self._kind.decode)
        yielder = Yielder(self._context.clock)
        while data := await self.log.read(loader.next_offset):
            before = loader.next_offset
            await yielder.run(loader.replay(data))
            if loader.next_offset <= before:
                raise CorruptBatch(f"no whole batch at offset {before}")
        return loader

    # Turns

    def turn(self) -> Any:
        """A new turn, of the type that belongs to the shard."""
        clock = self._context.clock
        return self.shard.turn(clock.monotonic(), clock.now_ms())

    async def submit(self, kind: type[R], subject: str, act: Callable[[Any, Waiter], None]) -> R:
        """Run a request in its own turn and wait for its reply."""
        if self._queue.records >= self._kind.limits.queue_records_max:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        waiter = self._next_waiter()
        turn = self.turn()
        with state_change:
            act(turn, waiter)
            future = self._futures[waiter] = asyncio.get_running_loop().create_future()
            self.finish(turn)
        try:
            response = await future
        except asyncio.CancelledError:
            if self._futures.pop(waiter, None) is not None and self.status is ShardStatus.ACTIVE:
                turn = self.turn()
                self.shard.connection_lost(turn, subject, waiter)
                self.finish(turn)
            raise
        assert isinstance(response, kind), f"{kind.__name__} expected, not {response}"
        return response

    async def read_committed(self, read: Callable[[], R]) -> R:
        """Read once all earlier writes are committed."""
        if self._task is not None:
            waiter = self._next_waiter()
            turn = self.turn()
            future = self._futures[waiter] = asyncio.get_running_loop().create_future()
            turn.reply(waiter, None)
            self._queue.put(turn)
            await future
        return read()

    def finish(self, turn: TurnResults) -> None:
        """Log the turn's notes, queue its records, or send its replies if it has none."""
        for note in turn.notes:
            log.info(note.event, **{self._kind.subject: note.subject}, detail=note.detail)
        self._context.carry_out(self, turn)
        if turn.records or (turn.is_serial and turn.replies and self._task is not None):
            self.shard.sent(turn.records)
            self._queue.put(turn)
            if self._task is None:
                self._run(self._write())
        else:
            self._send(turn.replies)
        self.arm()

    def arm(self) -> None:
        self._context.timer.set(self.shard.deadlines.next())

    def _next_waiter(self) -> Waiter:
        return Waiter(next(self._waiters))

    def _send(self, replies: Iterable[tuple[Waiter, Any]]) -> None:
        for waiter, response in replies:
            future = self._futures.pop(waiter, None)
            if future is None or future.done():
                continue
            if isinstance(response, KafkaError):
                future.set_exception(response)
            else:
                future.set_result(response)

    def _fail(self, waiter: Waiter, error: KafkaError) -> None:
        future = self._futures.pop(waiter, None)
        if future is not None and not future.done():
            future.set_exception(error)

    # Writing

    async def _write(self) -> None:
        """Append batches until the queue is empty.

        The task starts in the next event-loop iteration, so all requests of this iteration share
        the first batch.
        """
        while self._queue.writes:
            batch = self._queue.take()
            try:
                codes = await self._append(batch)
            except KafkaError as error:
                if error.code not in REFUSED:
                    self._lost(error)
                    return
                codes = [error.code] * len(batch.writes)
            except OSError as error:
                self._lost(error)
                return
            self._settle(batch, codes)
        self._task = None

    async def _append(self, batch: WriteBatch) -> list[ErrorCode]:
        """Append the batch. Returns for each write NONE, or the code that refused it."""
        if not any(write.records for write in batch.writes):
            return [ErrorCode.NONE] * len(batch.writes)
        seconds = self._kind.limits.append_timeout_ms / 1000
        timeout = asyncio.get_running_loop().call_later(seconds, self._time_out, batch)
        try:
            epoch = self.log.leader_epoch
            if batch.is_transactional:
                codes = await self.log.append_transactional(
                    [write.transactional_append(epoch) for write in batch.writes]
                )
            else:
                await self.log.append(batch.encode(epoch))
                codes = [ErrorCode.NONE] * len(batch.writes)
        finally:
            timeout.cancel()
        self._context.metrics.batches.value += 1
        self._context.metrics.records.value += len(batch.records())
        return codes

    def _time_out(self, batch: WriteBatch) -> None:
        """Fail the waiters of a slow append. The batch itself may still be committed."""
        for waiter in batch.waiters():
            self._fail(waiter, AppendTimedOut())

    def _settle(self, batch: WriteBatch, codes: list[ErrorCode]) -> None:
        """Apply the committed writes, take the refused ones back, and reply."""
        turn = self.turn()
        settled = list(zip(batch.writes, codes, strict=True))
        lost = [code for write, code in settled if write.is_serial and code is not ErrorCode.NONE]
        if lost:
            # Later writes may depend on the one that was refused.
            settled += [(write, lost[0]) for write in self._queue.take_plain()]
        for write, refused in settled:
            if refused is ErrorCode.NONE:
                with state_change:
                    self.shard.committed(turn, write.records)
            else:
                code = write.outcome.refused = response_code(refused)
                log.warning(
                    f"{self._kind.name} records were refused", partition=self.index, error=code.name
                )
                self.shard.refused(turn, write.records, code)
            if write.outcome.refused is None:
                self._send(write.replies)
            else:
                for waiter, _ in write.replies:
                    self._fail(waiter, KafkaError(write.outcome.refused))
        self.finish(turn)

    def _lost(self, error: KafkaError | OSError) -> None:
        log.error(f"{self._kind.name} records may be lost", partition=self.index, error=str(error))
        if self.status is ShardStatus.ACTIVE:
            self._reload()
