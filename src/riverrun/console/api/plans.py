"""Plans of moves: balance the cluster, move partitions, empty a node.

The controller runs a plan. A request only starts it and is answered at once; ``GET moves`` shows
the progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from riverrun.admin.balance import decommissioning
from riverrun.admin.balance.broker_modes import set_mode
from riverrun.admin.balance.cluster_state import ask_state
from riverrun.admin.balance.plan_report import described_figures, unplaced_lines
from riverrun.admin.balance.planning import plan_of
from riverrun.admin.balance.stored_plans import ask_plans, start_plan, supports_plans
from riverrun.admin.balance.topic_plans import move_plan
from riverrun.admin.broker_settings import DECOMMISSIONING, MAINTENANCE
from riverrun.console.problems import problem
from riverrun.console.routing import INT64_MAX, ApiEndpoint, ClusterRequest
from riverrun.placement.planner.estimate import estimate
from riverrun.placement.planner.plan import Plan
from riverrun.placement.planner.stored_plan import MOVES_MAX
from riverrun.placement.traffic import ClusterTraffic

BytesPerSecond = Annotated[int, Meta(ge=1, le=INT64_MAX)]


class BalanceBody(Struct, kw_only=True):
    """``throttle`` limits what each node sends and receives for the moves, in bytes per second."""

    throttle: BytesPerSecond | None = None
    dry_run: bool = False


class TopicMoveBody(Struct, kw_only=True):
    """``partition`` is null for all partitions. ``to`` names nodes, the preferred leader first."""

    to: Annotated[list[int], Meta(min_length=1)]
    partition: int | None = None
    throttle: BytesPerSecond | None = None
    dry_run: bool = False


class DecommissionBody(Struct, kw_only=True):
    """``undo`` makes the node active again, and cancels the plan that empties it."""

    undo: bool = False
    throttle: BytesPerSecond | None = None
    dry_run: bool = False


class MoveToDo(Struct, frozen=True, kw_only=True, rename={"from_": "from"}):
    """A move of a plan. ``bytes`` are copied."""

    topic: str
    partition: int
    from_: list[int]
    to: list[int]
    bytes: int
    reason: str


class MovePlanResult(Struct, frozen=True, kw_only=True):
    """A plan, and its id if it was started. ``moves_left`` did not fit into one plan: the same
    request starts them when the plan has ended. The figures compare the most loaded node to the
    mean. ``outlook`` says how long the plan takes with its throttle, or that it will not finish.
    If ``traffic_measured`` is false, sizes stand in for the traffic of partitions. ``behind`` names
    plans that run already: their moves go first where they need the same nodes."""

    dry_run: bool
    command: str
    plan: str | None = None
    moves: list[MoveToDo] = field(default_factory=list)
    moves_left: int = 0
    bytes: int = 0
    seconds: float | None = None
    outlook: str | None = None
    traffic_measured: bool = False
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    unplaced: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


class DecommissionResult(MovePlanResult, frozen=True, kw_only=True):
    """``state`` is ``moving`` while the node is emptied, ``empty`` when it can be stopped, and
    ``active`` after ``undo``. The vote is removed by a second request, when the node is empty."""

    node: int
    state: str
    vote_removed: bool = False


async def balance(request: ClusterRequest) -> MovePlanResult:
    body: BalanceBody = request.body
    await _check_plans(request)
    state = await ask_state(request.pool)
    plan = await asyncio.to_thread(plan_of, state)
    command = ("cluster", "balance")
    behind = [one.id for one in await ask_plans(request.pool)]
    plan_id = await _start(request, plan, command, body.throttle, dry_run=body.dry_run)
    return MovePlanResult(
        **_planned(plan, state.traffic, body.throttle),
        plan=plan_id,
        behind=behind,
        dry_run=body.dry_run,
        command=_command(request, command, body.throttle),
    )


async def move_topic(request: ClusterRequest) -> MovePlanResult:
    body: TopicMoveBody = request.body
    topic, nodes = request.params["topic"], tuple(body.to)
    if len(set(nodes)) < len(nodes):
        raise problem("invalid", "A node is named twice.", "Name different nodes.")
    await _check_plans(request)
    indexes = None if body.partition is None else frozenset([body.partition])
    state = await ask_state(request.pool)
    plan = move_plan(state, topic, indexes, nodes)
    place = topic if body.partition is None else f"{topic}:{body.partition}"
    command = ("topics", "move", place, "--to", ",".join(map(str, nodes)))
    behind = [one.id for one in await ask_plans(request.pool)]
    plan_id = await _start(request, plan, command, body.throttle, dry_run=body.dry_run)
    return MovePlanResult(
        **_planned(plan, state.traffic, body.throttle),
        plan=plan_id,
        behind=behind,
        dry_run=body.dry_run,
        command=_command(request, command, body.throttle),
    )


async def decommission(request: ClusterRequest) -> DecommissionResult:
    body: DecommissionBody = request.body
    node = node_of(request)
    await _check_plans(request)
    if body.undo:
        return await _recommission(request, node, dry_run=body.dry_run)
    pool = request.pool
    running = await decommissioning.running(pool, node)
    state = await ask_state(pool, needed=node)
    plan = await asyncio.to_thread(decommissioning.emptying_plan, state, node)
    missing = decommissioning.unplaced_in_words(plan, node)
    if missing:
        raise problem(
            "conflict",
            f"Node {node} cannot be emptied: {'; '.join(missing)}.",
            decommissioning.remedy(plan.unplaced),
        )
    command = tuple(decommissioning.words(node).split())
    is_empty = not state.held_by(node)
    is_vote_removed = False
    plan_id = running
    if not body.dry_run:
        await set_mode(pool, node, DECOMMISSIONING)
        if running is None:
            plan_id = await _start(request, plan, command, body.throttle, dry_run=False)
        if is_empty:
            is_vote_removed = await decommissioning.end_vote(pool, node)
    return DecommissionResult(
        **_planned(plan, state.traffic, body.throttle),
        node=node,
        state="empty" if is_empty else "moving",
        vote_removed=is_vote_removed,
        plan=plan_id,
        dry_run=body.dry_run,
        command=_command(request, command, body.throttle),
    )


async def _recommission(request: ClusterRequest, node: int, *, dry_run: bool) -> DecommissionResult:
    pool = request.pool
    state = await ask_state(pool, needed=node)
    if state.broker(node).mode == MAINTENANCE:
        raise problem(
            "conflict",
            f"Node {node} is in maintenance.",
            f"`riverrun cluster maintenance off {node}` ends that.",
        )
    plan_id = await decommissioning.running(pool, node)
    if not dry_run:
        plan_id = await decommissioning.undo(pool, node)
    return DecommissionResult(
        node=node,
        state="active",
        plan=plan_id,
        dry_run=dry_run,
        command=request.cluster.command("cluster", "recommission", str(node)),
    )


async def _start(
    request: ClusterRequest,
    plan: Plan,
    command: Sequence[str],
    throttle: int | None,
    *,
    dry_run: bool,
) -> str | None:
    if dry_run or not plan.moves:
        return None
    return await start_plan(
        request.pool,
        " ".join(command),
        plan.moves[:MOVES_MAX],
        throttle=throttle,
        requester=f"{request.user or 'anonymous'} by the console",
    )


def _planned(plan: Plan, traffic: ClusterTraffic, throttle: int | None) -> dict[str, Any]:
    """The fields of a plan in a result."""
    time_needed = None if throttle is None else estimate(plan.moves, throttle=float(throttle))
    return {
        "moves": [
            MoveToDo(
                topic=move.topic,
                partition=move.partition,
                from_=list(move.before),
                to=list(move.after),
                bytes=int(move.bytes_to_copy),
                reason=move.reason,
            )
            for move in plan.moves
        ],
        "moves_left": max(0, len(plan.moves) - MOVES_MAX),
        "bytes": int(plan.bytes_to_copy),
        "seconds": None if time_needed is None else time_needed.seconds,
        "outlook": None if time_needed is None else time_needed.text,
        "traffic_measured": traffic.is_measured,
        "before": described_figures(plan.before),
        "after": described_figures(plan.after),
        "unplaced": unplaced_lines(plan),
    }


def _command(request: ClusterRequest, words: Sequence[str], throttle: int | None) -> str:
    limit = () if throttle is None else ("--throttle", str(throttle))
    return request.cluster.command(*words, *limit, "--yes")


async def _check_plans(request: ClusterRequest) -> None:
    if not await supports_plans(request.pool):
        raise problem(
            "not_supported",
            "This cluster does not run plans of moves; only riverrun does.",
            "Use kafka-reassign-partitions.",
        )


def node_of(request: ClusterRequest) -> int:
    """The node in the path."""
    text = request.params["node"]
    if not (text.isascii() and text.isdecimal()):
        raise problem("invalid", f"{text} is not the id of a node.", "Use a number.")
    return int(text)


ENDPOINTS = (
    ApiEndpoint(
        "POST",
        "balance",
        balance,
        "Spread replicas, leaders and data evenly over the nodes",
        body=BalanceBody,
        response=MovePlanResult,
        tag="moves",
    ),
    ApiEndpoint(
        "POST",
        "topics/{topic}/move",
        move_topic,
        "Move partitions of a topic to other nodes",
        body=TopicMoveBody,
        response=MovePlanResult,
        tag="moves",
    ),
    ApiEndpoint(
        "POST",
        "nodes/{node}/decommission",
        decommission,
        "Move everything away from a node, or undo that",
        body=DecommissionBody,
        response=DecommissionResult,
        tag="moves",
    ),
)
