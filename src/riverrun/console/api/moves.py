"""Moves in progress, the plans that run, and their cancelling. ``plans`` starts plans."""

from __future__ import annotations

import time
from math import inf

from msgspec import Struct

from riverrun.admin.balance import cancellation
from riverrun.admin.balance.moves_report import MoveProgress, look
from riverrun.admin.balance.stored_plans import (
    ask_all_plans,
    ask_plan_moves,
    ask_rollbacks,
    ask_suggestion,
    supports_plans,
)
from riverrun.console.api import plans
from riverrun.console.move_sampler import MoveSampler
from riverrun.console.problems import problem
from riverrun.console.routing import ApiEndpoint, ClusterRequest
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.stored_plan import (
    StoredPlan,
    StoredRollback,
    Suggestion,
)


class RunningMove(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A partition that is being moved. ``rate`` is null until two requests could be compared."""

    topic: str
    partition: int
    from_: list[int]
    to: list[int]
    bytes_done: int
    bytes_total: int
    rate: float | None
    eta_seconds: float | None
    stalled: bool
    plan: str | None


class PlanState(Struct, frozen=True, kw_only=True):
    """A plan that runs, or one of those that ended last. ``bytes`` is known while it runs."""

    id: str
    reason: str
    requester: str
    state: str
    """running, done or cancelled."""
    moves: int
    moves_done: int
    moves_dropped: int
    bytes: int | None
    started_ms: int
    ended_ms: int | None
    throttle: int | None
    failures: dict[str, str]


class MoveRollback(Struct, frozen=True, kw_only=True):
    """A move that the controller rolled back, and why."""

    topic: str
    partition: int
    replica: int
    reason: str
    at_ms: int


class BalanceSuggestion(Struct, frozen=True, kw_only=True):
    """Whether the controller suggests a plan."""

    needed: bool
    reason: str | None


class MovesState(Struct, frozen=True, kw_only=True):
    """All moves and plans. ``supported`` is false for a cluster that is not riverrun: it shows
    moves, but runs no plans."""

    moves: list[RunningMove]
    plans: list[PlanState]
    rollbacks: list[MoveRollback]
    suggestion: BalanceSuggestion
    supported: bool
    command: str


class CancelBody(Struct, kw_only=True):
    """Name a topic (with a partition or all of them), a plan, or ``all``."""

    topic: str | None = None
    partition: int | None = None
    plan: str | None = None
    all: bool = False
    dry_run: bool = False


class MovePlace(Struct, frozen=True, kw_only=True):
    """A partition, with the reason why its move was not cancelled."""

    topic: str
    partition: int
    reason: str | None = None


class CancelResult(Struct, frozen=True, kw_only=True):
    """What was cancelled. The moves of a plan end together with it."""

    dry_run: bool
    command: str
    plans: list[str]
    moves: list[MovePlace]
    failures: list[MovePlace]


# Progress


async def get_moves(request: ClusterRequest) -> MovesState:
    pool = request.pool
    sampler = await request.results.get("move sampler", inf, _new_sampler)
    moves = await look(pool)
    found = sampler.add(moves, time.monotonic())
    is_supported = await supports_plans(pool)
    known = await ask_all_plans(pool) if is_supported else []
    running = [plan for plan in known if plan.is_running]
    sampler.learn(await ask_plan_moves(pool, sampler.unknown_plans(running)))
    planned = sampler.planned(running)
    rollbacks = await ask_rollbacks(pool) if is_supported else {}
    suggestion = await ask_suggestion(pool) if is_supported else None
    return MovesState(
        moves=[_running_move(one, planned, is_stalled=sampler.is_stalled(one)) for one in found],
        plans=[_plan_state(plan, sampler) for plan in reversed(known)],
        rollbacks=[_rollback(*row) for row in rollbacks.items()],
        suggestion=_suggestion(suggestion),
        supported=is_supported,
        command=request.cluster.command("cluster", "moves"),
    )


async def _new_sampler() -> MoveSampler:
    return MoveSampler()


def _running_move(
    move: MoveProgress,
    planned: dict[tuple[str, int], tuple[str, PlannedMove]],
    *,
    is_stalled: bool,
) -> RunningMove:
    plan, of_plan = planned.get((move.at.topic, move.at.partition), (None, None))
    before = [node for node in move.replicas if node not in move.adding]
    after = [node for node in move.replicas if node not in move.removing]
    return RunningMove(
        topic=move.at.topic,
        partition=move.at.partition,
        # The cluster reports all replicas in one list, so only the plan knows the old order.
        from_=before if of_plan is None else [*of_plan.before],
        to=after if of_plan is None else [*of_plan.after],
        bytes_done=move.bytes_done,
        bytes_total=move.bytes_total,
        rate=None if move.rate is None else max(move.rate, 0.0),
        eta_seconds=move.seconds_left,
        stalled=is_stalled,
        plan=plan,
    )


def _plan_state(plan: StoredPlan, sampler: MoveSampler) -> PlanState:
    now, result = plan.progress, plan.result
    moves = sampler.moves_of(plan)
    if result is not None:
        done, dropped, total = result.done, result.dropped, result.done + result.dropped
    else:
        done, dropped = now.done, now.dropped
        total = len(moves or ()) or done + dropped + now.waiting + len(now.moving)
    return PlanState(
        id=plan.id,
        reason=plan.header.reason,
        requester=plan.header.requester,
        state="running" if result is None else result.end.value,
        moves=total,
        moves_done=done,
        moves_dropped=dropped,
        bytes=None if moves is None else int(sum(move.bytes_to_copy for move in moves)),
        started_ms=plan.header.submitted_ms,
        ended_ms=None if result is None else result.ended_ms,
        throttle=plan.header.throttle,
        failures={} if result is None else result.failures,
    )


def _rollback(partition: str, rollback: StoredRollback) -> MoveRollback:
    topic, _, index = partition.rpartition("-")
    return MoveRollback(
        topic=topic,
        partition=int(index),
        replica=rollback.replica,
        reason=rollback.text,
        at_ms=rollback.at_ms,
    )


def _suggestion(found: Suggestion | None) -> BalanceSuggestion:
    return BalanceSuggestion(needed=found is not None, reason=None if found is None else found.text)


async def cancel_moves(request: ClusterRequest) -> CancelResult:
    body: CancelBody = request.body
    if (body.topic is not None) + (body.plan is not None) + body.all != 1:
        raise problem("invalid", "Nothing or too much is named.", "Name a topic, a plan, or all.")
    if body.partition is not None and body.topic is None:
        raise problem("invalid", "A partition needs its topic.", "Name the topic.")
    topics: cancellation.Topics | None = None
    words = ["--all"] if body.plan is None else ["--plan", body.plan]
    if body.topic is not None:
        indexes = None if body.partition is None else frozenset([body.partition])
        topics = {body.topic: indexes}
        words = [body.topic if body.partition is None else f"{body.topic}:{body.partition}"]
    wanted = await cancellation.find_cancellable(request.pool, topics, body.plan)
    if wanted.is_nothing and not body.all:
        what = "No such move is in progress." if body.plan is None else f"No plan {body.plan} runs."
        raise problem("not_found", what, "GET moves lists plans and moves.")
    if body.dry_run:
        ended = wanted.expected()
    else:
        ended = await cancellation.cancel(request.pool, wanted)
    return CancelResult(
        dry_run=body.dry_run,
        command=request.cluster.command("cluster", "moves", "cancel", *words, "--yes"),
        plans=list(ended.plans),
        moves=[MovePlace(topic=at.topic, partition=at.partition) for at in ended.moves],
        failures=[
            MovePlace(topic=at.topic, partition=at.partition, reason=why)
            for at, why in ended.failures.items()
        ],
    )


ENDPOINTS = (
    ApiEndpoint(
        "GET",
        "moves",
        get_moves,
        "Moves in progress, plans, and what the controller suggests",
        response=MovesState,
        tag="moves",
    ),
    ApiEndpoint(
        "POST",
        "moves/cancel",
        cancel_moves,
        "Cancel moves or a plan",
        body=CancelBody,
        response=CancelResult,
        tag="moves",
    ),
    *plans.ENDPOINTS,
)
