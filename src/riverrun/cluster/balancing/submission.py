"""Requests about plans: IncrementalAlterConfigs on a resource of type PLAN, named by the plan's id.

* SET ``plan`` and ``moves.0000`` ... submits a plan. It starts with the controller's next step.
* DELETE ``plan`` cancels a plan that runs, and forgets one that has ended.
* DELETE ``waiting.17`` drops the move with this number if it has not begun.

The submitter chooses the id, so a repeated request cannot submit a plan twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from riverrun.cluster.balance import partition_now
from riverrun.cluster.balancing.execution import CANCELLED, cancel, drop_moves
from riverrun.cluster.balancing.plans import PlanReader, plan_of, plan_record, removal
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.reassignment import check_target
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, PartitionIndex, TopicName
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.schedule import MoveState, state_of
from riverrun.placement.planner.stored_plan import (
    HEADER,
    MOVES,
    MOVES_MAX,
    PROGRESS,
    WAITING,
    PlanHeader,
    PlanProgress,
    PlanTextInvalid,
    StoredPlan,
    check_plan_id,
    decode_plan,
    encode,
    submitted_texts,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

RUNNING_MAX: Final = 8
REPAIRS_MAX: Final = 8
"""Repairs of the controller that may run beside each other and beside RUNNING_MAX other plans."""
ENDED_KEPT: Final = 8
"""Results of plans that are kept for those who watch; older ones are removed."""
REPAIRED: Final = "a repair of the controller moves the partition"
TEXT_CHARS_MAX: Final = 32_767
"""Kafka's limit for the value of a setting."""


def submit_plan(image: Image, plan_id: str, texts: dict[str, str]) -> list[Record]:
    """The records of a new plan. Raises KafkaError if it is invalid or meets another plan."""
    known = _known(image)
    _check_count([one for one in known if one.is_running and not one.header.is_repair], RUNNING_MAX)
    return _submitted(image, plan_id, texts, known)


def submit_repair(
    image: Image, plan_id: str, header: PlanHeader, moves: Sequence[PlannedMove]
) -> list[Record]:
    """The records of a repair, which does not wait for other plans: it takes over the partitions
    that wait in them. Partitions that they move now are left to a later repair."""
    known = _known(image)
    moving = {
        (one.moves[number].topic, one.moves[number].partition): None
        for one in known
        if one.is_running
        for number in one.progress.moving
    }
    mine = [move for move in moves if (move.topic, move.partition) not in moving]
    if not mine:
        return []
    places = {(move.topic, move.partition): None for move in mine}
    records: list[Record] = []
    for at, plan in enumerate(known):
        if not plan.is_running:
            continue
        taken = [n for n, move in enumerate(plan.moves) if (move.topic, move.partition) in places]
        records += drop_moves(image, plan, taken, REPAIRED)
        known[at] = replace(plan, dropped={**dict.fromkeys(taken, REPAIRED), **plan.dropped})
    texts = submitted_texts(header, mine)
    _check_count([one for one in known if one.is_running and one.header.is_repair], REPAIRS_MAX)
    return [*records, *_submitted(image, plan_id, texts, known)]


def _submitted(
    image: Image, plan_id: str, texts: dict[str, str], known: list[StoredPlan]
) -> list[Record]:
    plan = _decoded(plan_id, texts)
    running = [one for one in known if one.is_running]
    if any(one.id == plan_id for one in known):
        raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, f"There is a plan {plan_id} already.")
    _check_count(running, RUNNING_MAX + REPAIRS_MAX)
    _check_moves(image, plan.moves, running)
    records: list[Record] = list(_forget_old(image, known))
    records += [plan_record(plan_id, name, text) for name, text in texts.items()]
    waiting = encode(PlanProgress(waiting=len(plan.moves)))
    records.append(plan_record(plan_id, PROGRESS, waiting))
    return records


def _check_count(running: Sequence[StoredPlan], most: int) -> None:
    if len(running) >= most:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION, f"{len(running)} plans run already; wait, or cancel one."
        )


def cancel_plan(configs: Configs, image: Image, plan_id: str) -> list[Record]:
    plan = plan_of(image, plan_id)
    if plan is None:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no plan {plan_id}.")
    if not plan.is_running:
        return list(removal(image, plan_id))
    others = [one for one in running_plans(image) if one.id != plan_id]
    return cancel(configs, image, plan, others=others, now_ms=image.timestamp)


def cancel_waiting(image: Image, plan_id: str, names: Iterable[str]) -> list[Record]:
    """Drop moves of a plan that wait; others are left alone."""
    plan = plan_of(image, plan_id)
    if plan is None:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no plan {plan_id}.")
    waiting: list[int] = []
    for name in names:
        text = name.removeprefix(WAITING)
        number = int(text) if text.isdecimal() and len(text) < 10 else -1
        if text == name or number < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is not a move that waits")
        if number >= len(plan.moves):
            continue  # the plan has ended
        move = plan.moves[number]
        if state_of(move, partition_now(image, move.topic, move.partition)) is MoveState.WAITING:
            waiting.append(number)
    return drop_moves(image, plan, waiting, CANCELLED) if plan.is_running else []


def running_plans(image: Image) -> list[StoredPlan]:
    return [plan for plan in _known(image) if plan.is_running]


def _known(image: Image) -> list[StoredPlan]:
    return PlanReader().plans(image)


def _decoded(plan_id: str, texts: dict[str, str]) -> StoredPlan:
    try:
        check_plan_id(plan_id)
        for name, text in texts.items():
            if name != HEADER and not name.startswith(MOVES):
                raise PlanTextInvalid(f"{name} is not set by the submitter of a plan")
            if len(text) > TEXT_CHARS_MAX:
                raise PlanTextInvalid(f"{name} has more than {TEXT_CHARS_MAX} characters")
        plan = decode_plan(plan_id, texts)
    except PlanTextInvalid as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if plan.header.throttle is not None and plan.header.throttle <= 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the throttle must be positive")
    if not plan.moves:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the plan has no moves")
    if len(plan.moves) > MOVES_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"a plan has at most {MOVES_MAX} moves, and this has {len(plan.moves)}",
        )
    return plan


def _check_moves(image: Image, moves: Sequence[PlannedMove], running: list[StoredPlan]) -> None:
    """No partition may be in two plans or twice in one; all targets must be possible."""
    taken = {(move.topic, move.partition): one.id for one in running for move in _open_moves(one)}
    seen: dict[tuple[str, int], None] = {}
    usable: dict[NodeId, None] = {}
    for move in moves:
        place = (move.topic, move.partition)
        if place in seen:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{move.topic}-{move.partition} is in the plan twice"
            )
        seen[place] = None
        if place in taken:
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"{move.topic}-{move.partition} is part of the plan {taken[place]}; wait for it, "
                "or cancel it.",
            )
        if len(dict.fromkeys(move.after)) < len(move.after) or not move.after:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{move.topic}-{move.partition}: the replicas must be different brokers",
            )
        partition = image.partition(TopicName(move.topic), PartitionIndex(move.partition))
        for node in move.adding if partition is not None else ():
            if partition is not None and node not in usable and node not in partition.replicas:
                check_target(image, partition, (node,))
                usable[node] = None


def _open_moves(plan: StoredPlan) -> Iterator[PlannedMove]:
    for number, move in enumerate(plan.moves):
        if number not in plan.dropped:
            yield move


def _forget_old(image: Image, known: list[StoredPlan]) -> Iterator[Record]:
    finished = [one for one in known if one.result is not None]
    finished.sort(key=lambda one: one.result.ended_ms if one.result is not None else 0)
    for one in finished[: max(len(finished) - ENDED_KEPT + 1, 0)]:
        yield from removal(image, one.id)
