"""Cancels plans and moves: all of them, those of some topics, or one plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


async def cancel_moves(
    pool: ConnectionPool,
    topics: Topics | None,
    plan_id: str | None,
    *,
    agree: Callable[[str], None],
) -> Cancelled:
    """Cancel one plan, the moves of some topics, or everything (``topics`` is None).

    ``agree`` asks the user and exits if the answer is no. The moves of a plan are cancelled by the
    controller together with the plan. A second look finds moves that have no plan.
    """
    known = await ask_plans(pool)
    plans = [one for one in known if one.id == plan_id or (plan_id is None and topics is None)]
    moving = [] if plan_id is not None else _wanted(await ask_partitions(pool), topics)
    if not plans and not moving:
        return Cancelled()
    agree(_in_words(plans, moving))
    for plan in plans:
        await cancel_plan(pool, plan.id)
    places = [one.at for one in moving]
    if plans:
        moving = [] if plan_id is not None else _wanted(await ask_partitions(pool), topics)
    failures = await reassign(pool, dict.fromkeys(one.at for one in moving)) if moving else {}
    if plans:
        # A node may still have shown a move that ended with its plan.
        failures = {at: why for at, why in failures.items() if NOT_IN_PROGRESS not in why}
    return Cancelled(
        plans=tuple(plan.id for plan in plans),
        moves=tuple(at for at in places if at not in failures),
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


def _in_words(plans: Sequence[StoredPlan], moving: Sequence[PartitionState]) -> str:
    parts = [f"the plan {plan.id} ({plan.header.reason})" for plan in plans]
    if moving:
        parts.append(counted(len(moving), "move"))
    return " and ".join(parts)
