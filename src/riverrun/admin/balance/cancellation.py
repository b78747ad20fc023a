"""Cancels plans and moves: all of them, those of some topics, or one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from riverrun.admin.balance.cluster_state import PartitionState, ask_partitions
from riverrun.admin.balance.reassignments import reassign
from riverrun.admin.balance.stored_plans import ask_plans, cancel_plan
from riverrun.admin.tables import counted
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import TopicPartition
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
    topics: Topics | None
    with_moves: bool
    """Whether moves without a plan are cancelled too."""

    @property
    def is_nothing(self) -> bool:
        return not self.plans and not self.moving

    def expected(self) -> Cancelled:
        """The result, if no cancel is refused."""
        return Cancelled(
            plans=tuple(plan.id for plan in self.plans), moves=tuple(one.at for one in self.moving)
        )

    def __str__(self) -> str:
        parts = [f"the plan {plan.id} ({plan.header.reason})" for plan in self.plans]
        if self.moving:
            parts.append(counted(len(self.moving), "move"))
        return " and ".join(parts)


async def find_cancellable(
    pool: ConnectionPool, topics: Topics | None, plan_id: str | None
) -> Cancellation:
    """Look for one plan, the moves of some topics, or everything (``topics`` is None)."""
    known = await ask_plans(pool)
    plans = [one for one in known if one.id == plan_id or (plan_id is None and topics is None)]
    moving = [] if plan_id is not None else _wanted(await ask_partitions(pool), topics)
    return Cancellation(
        plans=tuple(plans), moving=tuple(moving), topics=topics, with_moves=plan_id is None
    )


async def cancel(pool: ConnectionPool, wanted: Cancellation) -> Cancelled:
    """Cancel plans and moves. The moves of a plan are cancelled by the controller together with
    the plan. A second look finds moves that have no plan."""
    moving: Sequence[PartitionState] = wanted.moving
    for plan in wanted.plans:
        await cancel_plan(pool, plan.id)
    if wanted.plans:
        moving = _wanted(await ask_partitions(pool), wanted.topics) if wanted.with_moves else ()
    failures = await reassign(pool, dict.fromkeys(one.at for one in moving)) if moving else {}
    if wanted.plans:
        # A node may still have shown a move that ended with its plan.
        failures = {at: why for at, why in failures.items() if NOT_IN_PROGRESS not in why}
    return Cancelled(
        plans=tuple(plan.id for plan in wanted.plans),
        moves=tuple(one.at for one in wanted.moving if one.at not in failures),
        failures=failures,
    )


NOT_IN_PROGRESS = "NO_REASSIGNMENT_IN_PROGRESS"


def _wanted(partitions: Sequence[PartitionState], topics: Topics | None) -> list[PartitionState]:
    return [one for one in partitions if one.is_moving and _is_wanted(one.at, topics)]


def _is_wanted(at: TopicPartition, topics: Topics | None) -> bool:
    if topics is None:
        return True
    indexes = topics.get(at.topic, frozenset())
    return indexes is None or at.partition in indexes
