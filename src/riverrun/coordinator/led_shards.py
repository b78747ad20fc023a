"""All partitions of an internal topic that this node leads, and the runners of their shards.

The server reports leadership changes (``elect``, ``resign``). A runner loads its shard, executes
turns while the node leads, and is dropped afterwards. One timer serves the deadlines of all shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic

import structlog

from riverrun.coordinator.deadline_timer import DeadlineTimer
from riverrun.coordinator.log import CoordinatorLog
from riverrun.coordinator.metrics import ShardMetrics
from riverrun.coordinator.shard_kind import S, ShardKind
from riverrun.coordinator.shard_runner import (
    IDS_PER_TURN,
    ShardContext,
    ShardRunner,
    ShardStatus,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex
from riverrun.ports.aio import OwnedTasks, Yielder
from riverrun.ports.clock import Clock

log = structlog.get_logger("riverrun.coordinator")


class LedShards(Generic[S]):
    """The shards of one kind on this node."""

    def __init__(
        self,
        kind: ShardKind[S],
        *,
        clock: Clock,
        metrics: ShardMetrics,
        failed: Callable[[BaseException], None],
        carry_out: Callable[[ShardRunner[S], Any], None] = lambda _runner, _turn: None,
    ) -> None:
        """``failed`` gets exceptions that can only be our bug; the node must stop then.
        ``carry_out`` gets every turn that ends, for effects other than records and replies.
        """
        self._kind = kind
        self._clock = clock
        self._metrics = metrics
        self._timer = DeadlineTimer(clock, on_due=self._expire, on_stall=self._credit)
        self._tasks = OwnedTasks(lambda _, error: failed(error))
        self._context = ShardContext(
            kind=kind,
            clock=clock,
            metrics=metrics,
            timer=self._timer,
            tasks=self._tasks,
            carry_out=carry_out,
        )
        self.runners: dict[PartitionIndex, ShardRunner[S]] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a periodic task until ``stop``."""
        self._tasks.start(work)

    async def stop(self) -> None:
        for index in list(self.runners):
            self.resign(index)
        self._timer.stop()
        await self._tasks.close()

    # Leadership

    def elect(self, index: PartitionIndex, held: CoordinatorLog) -> None:
        """Coordinate a partition that this node leads from now on."""
        known = self.runners.get(index)
        is_loaded = known is not None and known.status is ShardStatus.ACTIVE
        if known is not None and is_loaded and held.leader_epoch <= known.log.leader_epoch + 1:
            known.log = held  # this node led the previous epoch too: no other node has written
            return
        self.resign(index)
        runner = self.runners[index] = ShardRunner(index, held, self._context)
        runner.start()

    def resign(self, index: PartitionIndex) -> None:
        """Stop coordinating a partition that this node no longer leads."""
        runner = self.runners.pop(index, None)
        if runner is not None:
            runner.resign()

    def runner_of(self, index: PartitionIndex) -> ShardRunner[S]:
        """The loaded shard of a partition. Raises ``KafkaError`` if this node has none."""
        runner = self.runners.get(index)
        if runner is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if runner.status is not ShardStatus.ACTIVE:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runner

    def active(self) -> Iterator[ShardRunner[S]]:
        """The shards that are loaded."""
        return (one for one in self.runners.values() if one.status is ShardStatus.ACTIVE)

    def all_loaded(self) -> list[ShardRunner[S]]:
        """All shards. Raises ``KafkaError`` while one is loading."""
        runners = list(self.runners.values())
        if any(runner.status is not ShardStatus.ACTIVE for runner in runners):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return runners

    # Time

    async def sweep(
        self,
        interval_ms: int,
        ids_of: Callable[[S], Sequence[str]],
        act: Callable[[S, Any, Sequence[str]], None],
    ) -> None:
        """Run ``act`` over the ids of all shards at an interval, some ids in each turn."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            yielder = Yielder(self._clock)
            for runner in list(self.runners.values()):
                ids = ids_of(runner.shard)
                for start in range(0, len(ids), IDS_PER_TURN):
                    if runner.status is ShardStatus.ACTIVE:
                        turn = runner.turn()
                        act(runner.shard, turn, ids[start : start + IDS_PER_TURN])
                        runner.finish(turn)
                    await yielder.step()

    def _expire(self) -> None:
        for runner in list(self.active()):
            turn = runner.turn()
            runner.shard.expire(turn)
            runner.finish(turn)

    def _credit(self, seconds: float) -> None:
        """Postpone all deadlines by a stall of this process."""
        self._metrics.stalls.value += 1
        log.warning(
            f"event loop stalled; {self._kind.name} deadlines extended", seconds=round(seconds, 3)
        )
        for runner in self.runners.values():
            runner.shard.deadlines.postpone(seconds)
            runner.arm()
