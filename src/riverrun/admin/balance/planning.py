"""Plans from the state of a cluster, with the measured write rates of the partitions that move."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from riverrun.admin.balance.cluster_state import ClusterView, layout_of
from riverrun.placement.planner.plan import Plan, Purpose, make_plan


def plan_of(
    state: ClusterView,
    purpose: Purpose = Purpose.BALANCE,
    *,
    draining: Collection[int] = (),
    resized: Mapping[str, int] | None = None,
) -> Plan:
    """Plan moves. The estimate of their time needs every known rate, the planner itself only rates
    that are worth a move."""
    plan = make_plan(layout_of(state, draining=draining, resized=resized), purpose)
    traffic = state.traffic
    moves = (
        replace(move, bytes_in=traffic.bytes_in_of(move.topic, move.leader) or 0.0)
        for move in plan.moves
    )
    return replace(plan, moves=tuple(moves))
