"""Runs the moves of a plan, a limited number at a time, until all have ended.

The state of a move is in the cluster's metadata. So moves continue if this process dies, and a
second run of the same command plans what is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from riverrun.cli.balance.cluster_state import PartitionState, ask_partitions
from riverrun.cli.balance.reassignments import reassign
from riverrun.cli.balance.throttles import remove_throttle, set_throttle
from riverrun.cli.cluster.elections import elect, plan_elections
from riverrun.client.pool import ClusterUnreachable, ConnectionPool
from riverrun.model.errors import KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.schedule import MoveLimits, PartitionNow, ScheduleStep, next_step

LOOK_EVERY_SECONDS = 0.5
OUTAGE_SECONDS_MAX = 60.0
"""How long the cluster may be unreachable before the execution gives up."""

Report = Callable[[ScheduleStep], None]


@dataclass(slots=True, kw_only=True)
class ExecutionResult:
    """``dropped`` moves were overtaken: their partition was deleted, moved or cancelled."""

    done: int = 0
    dropped: int = 0
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    not_elected: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.dropped and not self.failed


async def execute(
    pool: ConnectionPool,
    moves: Sequence[PlannedMove],
    *,
    brokers: Sequence[int],
    throttle: int | None,
    limits: MoveLimits,
    report: Report,
) -> ExecutionResult:
    """Start all moves in their order and wait for their end, then let the preferred replicas lead.

    ``throttle`` in bytes per second limits what each broker sends and receives for the moves.
    """
    if throttle is None or not any(move.adding for move in moves):
        return await _execute(pool, moves, limits, report)
    limit = await set_throttle(pool, moves, brokers, throttle)
    try:
        return await _execute(pool, moves, limits, report)
    finally:
        # Also after Ctrl-C: no command would remove it later.
        await pool.try_again(lambda: remove_throttle(pool, limit))


async def _execute(
    pool: ConnectionPool, moves: Sequence[PlannedMove], limits: MoveLimits, report: Report
) -> ExecutionResult:
    result = ExecutionResult()
    left = list(moves)
    topics = list(dict.fromkeys(move.topic for move in moves))
    answered_at = time.monotonic()
    while True:
        try:
            known = {one.at: one for one in await ask_partitions(pool, topics)}
            answered_at = time.monotonic()
            step = next_step(left, partial(_now, known), limits=limits)
            report(step)
            if step.is_finished:
                break
            failures = await _start(pool, step.start)
        except (OSError, KafkaError) as error:
            # A controller may fail over meanwhile, and nodes may restart.
            if time.monotonic() - answered_at > OUTAGE_SECONDS_MAX:
                raise
            if isinstance(error, ClusterUnreachable):
                await pool.switch_node()
            failures = {}
        result.failed.update(failures)
        left = [move for move in left if _place(move) not in failures]
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    result.done, result.dropped = step.done, step.dropped
    result.not_elected = await _elect(pool, moves)
    return result


async def _start(pool: ConnectionPool, moves: Sequence[PlannedMove]) -> dict[TopicPartition, str]:
    if not moves:
        return {}
    return await reassign(pool, {_place(move): move.after for move in moves})


async def _elect(pool: ConnectionPool, moves: Sequence[PlannedMove]) -> dict[TopicPartition, str]:
    """Let the first replica of each moved partition lead; the failures."""
    moved = {_place(move) for move in moves}
    topics = sorted({move.topic for move in moves})
    there = {one.at.topic for one in await ask_partitions(pool, topics)} if topics else set()
    wanted: dict[str, frozenset[int] | None] = {
        topic: frozenset(at.partition for at in moved if at.topic == topic)
        for topic in topics
        if topic in there
    }
    if not wanted:
        return {}
    plan = await plan_elections(pool, wanted, is_unclean=False)
    if not plan.changes:
        return {}
    return {
        one.partition: one.failure for one in await elect(pool, plan) if one.failure is not None
    }


def _now(
    known: dict[TopicPartition, PartitionState], topic: str, index: int
) -> PartitionNow | None:
    found = known.get(TopicPartition(TopicName(topic), PartitionIndex(index)))
    if found is None:
        return None
    return PartitionNow(
        replicas=tuple(NodeId(node) for node in found.target),
        leader=None if found.leader is None else NodeId(found.leader),
        is_moving=found.is_moving,
    )


def _place(move: PlannedMove) -> TopicPartition:
    return TopicPartition(TopicName(move.topic), PartitionIndex(move.partition))
