"""Cancels plans and moves: all of them, those of some topics, or one plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from riverrun.admin.balance.cluster_state import PartitionState, ask_partitions
from riverrun.admin.balance.reassignments import reassign
from riverrun.admin.balance.stored_plans import (
    ask_plans,
    ask_whole_plans,
    cancel_plan,
    cancel_waiting,
)
from riverrun.admin.tables import counted
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.placement.planner.stored_plan import StoredPlan

Topics = Mapping[str, frozenset[int] | None]
"""Topics with some partitions, or with all (None)."""


@dataclass(slots=True, kw_only=True)
class Cancelled:
    plans: tuple[str, ...] = ()
    moves: tuple[TopicPartition, ...] = ()
    failures: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def is_nothing(self) -> bool:
        return not self.plans and not self.moves and not self.failures

    def described(self) -> dict[str, object]:
        return {
            "cancelled": [str(at) for at in self.moves],
            "failed": {str(at): why for at, why in self.failures.items()},
            "plans": list(self.plans),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation:
    """What a cancellation would end."""

    plans: tuple[StoredPlan, ...]
    moving: tuple[PartitionState, ...]
    waiting: Mapping[str, Mapping[int, TopicPartition]]
    """The moves of each plan that goes on without them, by number."""
    topics: Topics | None
    with_moves: bool
    """Whether moves are cancelled here too, or only by the controller with their plan."""

    @property
    def is_nothing(self) -> bool:
        return not self.plans and not self.moves

    @property
    def moves(self) -> tuple[TopicPartition, ...]:
        """The partitions whose moves are under way or wait."""
        waiting = [at for rows in self.waiting.values() for at in rows.values()]
        return (*(one.at for one in self.moving), *waiting)

    def expected(self) -> Cancelled:
        """The result, if no cancel is refused."""
        return Cancelled(plans=tuple(plan.id for plan in self.plans), moves=self.moves)

    def __str__(self) -> str:
        parts = [f"the plan {plan.id} ({plan.header.reason})" for plan in self.plans]
        if self.moves:
            parts.append(counted(len(self.moves), "move"))
        return " and ".join(parts)


async def find_cancellable(
    pool: ConnectionPool, topics: Topics | None, plan_id: str | None
) -> Cancellation:
    """Look for one plan with its moves, the moves of some topics, or everything (``topics`` is
    None)."""
    known = await ask_plans(pool)
    plans = [one for one in known if one.id == plan_id or (plan_id is None and topics is None)]
    partitions = await ask_partitions(pool) if plans or plan_id is None else []
    is_whole = plan_id is not None or topics is not None
    whole = await ask_whole_plans(pool) if known and is_whole else []
    if plan_id is not None:
        return Cancellation(
            plans=tuple(plans),
            moving=tuple(_moving_by(plan_id, whole, partitions)),
            waiting={},
            topics=None,
            with_moves=False,
        )
    return Cancellation(
        plans=tuple(plans),
        moving=tuple(_wanted(partitions, topics)),
        waiting=_waiting(whole, partitions, topics),
        topics=topics,
        with_moves=True,
    )


async def cancel(pool: ConnectionPool, wanted: Cancellation) -> Cancelled:
    """Cancel plans and moves. The moves of a plan are cancelled by the controller together with
    the plan. A second look finds moves that have no plan, and those that have just begun."""
    moving: Sequence[PartitionState] = wanted.moving
    for plan in wanted.plans:
        await cancel_plan(pool, plan.id)
    for plan_id, rows in wanted.waiting.items():
        await cancel_waiting(pool, plan_id, list(rows))
    if wanted.plans or wanted.waiting:
        moving = _wanted(await ask_partitions(pool), wanted.topics) if wanted.with_moves else ()
    failures = await reassign(pool, dict.fromkeys(one.at for one in moving)) if moving else {}
    if wanted.plans or wanted.waiting:
        # A node may still have shown a move that ended with its plan.
        failures = {at: why for at, why in failures.items() if NOT_IN_PROGRESS not in why}
    return Cancelled(
        plans=tuple(plan.id for plan in wanted.plans),
        moves=tuple(at for at in wanted.moves if at not in failures),
        failures=failures,
    )


NOT_IN_PROGRESS = "NO_REASSIGNMENT_IN_PROGRESS"


def _waiting(
    plans: Iterable[StoredPlan], partitions: Iterable[PartitionState], topics: Topics | None
) -> dict[str, dict[int, TopicPartition]]:
    replicas = {one.at: one.replicas for one in partitions if not one.is_moving}
    found: dict[str, dict[int, TopicPartition]] = {}
    for plan in plans:
        for number, move in enumerate(plan.moves):
            at = TopicPartition(TopicName(move.topic), PartitionIndex(move.partition))
            is_open = number not in plan.dropped and replicas.get(at) == move.before
            if is_open and _is_wanted(at, topics):
                found.setdefault(plan.id, {})[number] = at
    return found


def _moving_by(
    plan_id: str, plans: Iterable[StoredPlan], partitions: Iterable[PartitionState]
) -> list[PartitionState]:
    """The moves of a plan that are under way."""
    targets = {
        (move.topic, move.partition): move.after
        for plan in plans
        if plan.id == plan_id
        for number, move in enumerate(plan.moves)
        if number not in plan.dropped
    }
    return [
        one
        for one in partitions
        if one.is_moving and targets.get((one.at.topic, one.at.partition)) == one.target
    ]


def _wanted(partitions: Sequence[PartitionState], topics: Topics | None) -> list[PartitionState]:
    return [one for one in partitions if one.is_moving and _is_wanted(one.at, topics)]


def _is_wanted(at: TopicPartition, topics: Topics | None) -> bool:
    if topics is None:
        return True
    indexes = topics.get(at.topic, frozenset())
    return indexes is None or at.partition in indexes
