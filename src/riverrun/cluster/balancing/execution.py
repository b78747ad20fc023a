"""One step of a plan: which moves have ended, which start, and the end of the plan.

    waiting ──start──> moving ──new replicas are in sync──> done
       |                 ├──cancelled, or given another target──> dropped
       └──the partition was deleted or changed by others──> dropped

All changes of a step are one batch: the reassignments, the throttle, the elections of preferred
leaders for moves that are done, and the progress. A new controller therefore continues from any
step, and nothing of a plan is left behind when it ends.

A move that was cancelled (by a person, or by a leader that rolls it back) is dropped and not
started again: its cause has not gone away. A later plan may contain it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from riverrun.cluster.balance import partition_now
from riverrun.cluster.balancing.plans import plan_record, removal
from riverrun.cluster.balancing.throttling import removal_of_throttle, throttle_records
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import Election, LeaderCandidates, change
from riverrun.cluster.partitions.reassignment import alter_partition_reassignments
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.schedule import (
    MoveLimits,
    MoveState,
    PartitionNow,
    next_step,
    state_of,
)
from riverrun.placement.planner.stored_plan import (
    FAILURES_MAX,
    HEADER,
    PROGRESS,
    RESULT,
    PlanEnd,
    PlanProgress,
    PlanResult,
    StoredPlan,
    dropped_texts,
    encode,
)
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

if TYPE_CHECKING:
    from riverrun.metadata.records import Record

DELETED: Final = "the partition was deleted"
CANCELLED: Final = "the move was cancelled, by a request or because its leader rolled it back"
RETARGETED: Final = "another request chose other replicas"
CHANGED: Final = "the partition has other replicas than when the plan was made"


class EndedMoves(Struct, frozen=True, kw_only=True):
    """What became of the moves that were under way. ``dropped`` has reasons by number."""

    done: tuple[int, ...]
    moving: tuple[int, ...]
    dropped: Mapping[int, str]


def ended(image: Image, plan: StoredPlan) -> EndedMoves:
    done: list[int] = []
    moving: list[int] = []
    dropped: dict[int, str] = {}
    for number in plan.progress.moving:
        move = plan.moves[number]
        now = partition_now(image, move.topic, move.partition)
        state = state_of(move, now)
        if now is None:
            dropped[number] = DELETED
        elif now.replicas == move.after:
            (moving if state is MoveState.MOVING else done).append(number)
        elif not now.is_moving and sorted(now.replicas) == sorted(move.before):
            # A cancel restores the replicas, not always in their order.
            dropped[number] = CANCELLED
        else:
            dropped[number] = RETARGETED
    return EndedMoves(done=tuple(done), moving=tuple(moving), dropped=dropped)


def advance(
    configs: Configs,
    image: Image,
    plan: StoredPlan,
    *,
    others: Sequence[StoredPlan] = (),
    limits: MoveLimits | None = None,
    now_ms: int = 0,
) -> list[Record]:
    """The records of the next step; empty if nothing changes. ``others`` also run."""
    past = ended(image, plan)
    dropped = {**plan.dropped, **past.dropped}
    numbers = {id(move): number for number, move in enumerate(plan.moves)}
    step = next_step(
        [move for number, move in enumerate(plan.moves) if number not in dropped],
        partial(_now, image),
        limits=limits,
        others_in_flight=[one.moves[n] for one in others for n in one.progress.moving],
    )
    records: list[Record] = []
    started, refused = _started(configs, image, step.start, records)
    newly_dropped = {**past.dropped, **{numbers[id(move)]: why for move, why in refused}}
    dropped.update(newly_dropped)
    records += _elections(configs, image, [plan.moves[number] for number in past.done])
    if step.is_finished or (not started and not step.moving and not step.waiting):
        return [*records, *end(image, plan, dropped, others, PlanEnd.DONE, now_ms)]
    records += throttle_records(
        image, plan, started=started, moving=[plan.moves[number] for number in past.moving]
    )
    progress = PlanProgress(
        moving=(*past.moving, *[numbers[id(move)] for move in started]),
        done=step.done,
        waiting=step.waiting,
        dropped=step.dropped + len(dropped),
    )
    if newly_dropped:
        for name, text in dropped_texts(dropped, newly_dropped).items():
            records.append(plan_record(plan.id, name, text))
    if progress != plan.progress:
        records.append(plan_record(plan.id, PROGRESS, encode(progress)))
    return records


def cancel(
    configs: Configs,
    image: Image,
    plan: StoredPlan,
    *,
    others: Sequence[StoredPlan] = (),
    now_ms: int = 0,
) -> list[Record]:
    """End a plan: its moves under way return to the replicas from before, and no other starts.

    A move whose cancel is refused, because too few of its original replicas are in sync, goes on as
    a reassignment without a plan.
    """
    past = ended(image, plan)
    moves = [plan.moves[number] for number in past.moving]
    records: list[Record] = []
    refused = dict(_reassigned(configs, image, [(move, None) for move in moves], records))
    dropped = {**plan.dropped, **past.dropped}
    for number in past.moving:
        why = refused.get(_place(plan.moves[number]))
        dropped[number] = "cancelled with the plan" if why is None else f"not cancelled: {why}"
    return [*records, *end(image, plan, dropped, others, PlanEnd.CANCELLED, now_ms)]


def end(
    image: Image,
    plan: StoredPlan,
    dropped: Mapping[int, str],
    others: Iterable[StoredPlan],
    how: PlanEnd,
    now_ms: int,
) -> list[Record]:
    """Remove the throttle and all texts of the plan but its header, and add the result."""
    reasons = dict(dropped)
    done = 0
    for number, move in enumerate(plan.moves):
        if number in reasons:
            continue
        state = state_of(move, partition_now(image, move.topic, move.partition))
        if state is MoveState.DONE:
            done += 1
        elif how is PlanEnd.DONE:
            is_there = partition_now(image, move.topic, move.partition) is not None
            reasons[number] = CHANGED if is_there else DELETED
    failures = {
        f"{plan.moves[number].topic}-{plan.moves[number].partition}": reasons[number]
        for number in sorted(reasons)[:FAILURES_MAX]
    }
    result = PlanResult(
        end=how, ended_ms=now_ms, done=done, dropped=len(plan.moves) - done, failures=failures
    )
    return [
        *removal_of_throttle(image, plan, others),
        *removal(image, plan.id, kept=(HEADER,)),
        plan_record(plan.id, RESULT, encode(result)),
    ]


def _now(image: Image, topic: str, partition: int) -> PartitionNow | None:
    return partition_now(image, topic, partition)


Place = tuple[str, int]


def _place(move: PlannedMove) -> Place:
    return move.topic, move.partition


def _started(
    configs: Configs, image: Image, moves: Sequence[PlannedMove], records: list[Record]
) -> tuple[list[PlannedMove], list[tuple[PlannedMove, str]]]:
    """The moves that start, and those that are refused with the reason."""
    if not moves:
        return [], []
    failures = dict(_reassigned(configs, image, [(move, move.after) for move in moves], records))
    started = [move for move in moves if _place(move) not in failures]
    refused = [(move, failures[_place(move)]) for move in moves if _place(move) in failures]
    return started, refused


def _reassigned(
    configs: Configs,
    image: Image,
    targets: Sequence[tuple[PlannedMove, Sequence[int] | None]],
    records: list[Record],
) -> list[tuple[Place, str]]:
    """Add the records of reassignments, decided like those of a request; returns the failures."""
    if not targets:
        return []
    topics: dict[str, list[ReassignablePartition]] = {}
    for move, target in targets:
        topics.setdefault(move.topic, []).append(
            ReassignablePartition(
                partition_index=move.partition,
                replicas=None if target is None else tuple(target),
            )
        )
    request = AlterPartitionReassignmentsRequest(
        topics=tuple(
            ReassignableTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        )
    )
    decision = alter_partition_reassignments(configs, image, request)
    records += decision.records
    return [
        ((topic.name, row.partition_index), row.error_message or row.error_code.name)
        for topic in decision.response.responses
        for row in topic.partitions
        if row.error_code is not ErrorCode.NONE
    ]


def _elections(configs: Configs, image: Image, moves: Iterable[PlannedMove]) -> list[Record]:
    """Let the first replica of each moved partition lead, if it can."""
    candidates: LeaderCandidates | None = None
    records: list[Record] = []
    for move in moves:
        topic = image.topics_by_name.get(TopicName(move.topic))
        partition = image.partition(TopicName(move.topic), PartitionIndex(move.partition))
        if topic is None or partition is None:
            continue
        preferred = partition.replicas[0]
        candidates = candidates or LeaderCandidates(image)
        if partition.leader == preferred or preferred not in partition.isr:
            continue
        if not candidates.should_lead(partition, preferred):
            continue
        rules = election_rules(configs, image, topic)
        record = change(
            topic.id,
            move.partition,
            partition,
            rules,
            candidates,
            election=Election.PREFERRED,
        )
        if record is not None:
            records.append(record)
    return records
