"""The steps of a decommissioning besides its plan, and its undoing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from riverrun.admin.balance.broker_modes import set_mode
from riverrun.admin.balance.cluster_state import ClusterView, ask_partitions
from riverrun.admin.balance.plan_report import unplaced_lines
from riverrun.admin.balance.planning import plan_of
from riverrun.admin.balance.stored_plans import ask_plans, cancel_plan
from riverrun.admin.quorum.admin import remove_voter
from riverrun.admin.quorum.report import ask_quorum
from riverrun.client.pool import ConnectionPool
from riverrun.placement.planner.evacuation import IN_PROGRESS, Unplaced
from riverrun.placement.planner.plan import Plan, Purpose

UNPLACED_MAX = 5
"""Replicas without a place that are listed; further ones are counted."""
LOOKS_MAX = 20
LOOK_EVERY_SECONDS = 0.25
"""A node learns of the end of a move slightly after the controller."""


def words(node: int) -> str:
    """The command by which the cluster knows the plan."""
    return f"cluster decommission {node}"


def emptying_plan(state: ClusterView, node: int) -> Plan:
    """Moves everything away from a node."""
    return plan_of(state, Purpose.REPAIR, draining=(node,))


def unplaced_in_words(plan: Plan, node: int) -> list[str]:
    """Why a node cannot be emptied; nothing if it can."""
    if all(one.broker != node for one in plan.unplaced):
        return []
    lines = unplaced_lines(plan)
    more = [f"and {len(lines) - UNPLACED_MAX} more"] if len(lines) > UNPLACED_MAX else []
    return [*lines[:UNPLACED_MAX], *more]


def remedy(unplaced: Sequence[Unplaced]) -> str:
    """How the replicas without a place get one."""
    waits = [one.reason == IN_PROGRESS for one in unplaced]
    parts = []
    if any(waits):
        parts.append(
            "Wait for the moves, which `riverrun cluster moves` shows, or cancel them with "
            "`riverrun cluster moves cancel`."
        )
    if not all(waits):
        parts.append("Add a node, or free space on the others.")
    return " ".join(parts)


async def running(pool: ConnectionPool, node: int) -> str | None:
    """The plan that empties a node, if one runs."""
    for plan in await ask_plans(pool):
        of_controller = f"broker {node} is being decommissioned" in plan.header.reason
        if plan.header.reason == words(node) or of_controller:
            return plan.id
    return None


async def replicas_left(pool: ConnectionPool, node: int) -> int:
    left = 0
    for _ in range(LOOKS_MAX):
        left = sum(node in one.replicas for one in await ask_partitions(pool))
        if not left:
            break
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    return left


async def undo(pool: ConnectionPool, node: int) -> str | None:
    """Make the node active and cancel the plan that empties it; the id of that plan."""
    known = await running(pool, node)
    if known is not None:
        await cancel_plan(pool, known)
    await set_mode(pool, node, None)
    return known


async def end_vote(pool: ConnectionPool, node: int) -> bool:
    """Remove a node's vote in the quorum, if it has one; whether it had."""
    quorum = await ask_quorum(pool)
    voter = next((one for one in quorum.voters if one.id == node), None)
    if voter is None:
        return False
    await remove_voter(pool, voter)
    return True
