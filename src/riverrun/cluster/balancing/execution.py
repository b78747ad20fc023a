"""One step of a plan: which moves have ended, which start, and the end of the plan.

    waiting ──start──> moving ──new replicas are in sync──> done
       |                 ├──cancelled, or given another target──> dropped
       ├──the partition was deleted or changed by others──> dropped
       └──a new replica's broker is lost (``destinations.py``)──> dropped; cancelled if moving

All changes of a step are one batch: the reassignments, the throttle, the elections of preferred
leaders for moves that are done, and the progress. A new controller therefore continues from any
step, and nothing of a plan is left behind when it ends.

A move that was cancelled (by a person, or by a leader that rolls it back) is dropped and not
started again: its cause has not gone away. A later plan may contain it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from msgspec import Struct

from riverrun.cluster.balance import partition_now
from riverrun.cluster.balancing.destinations import AWAY_MS_MAX, Destinations
from riverrun.cluster.balancing.plans import plan_record, removal
from riverrun.cluster.balancing.rollbacks import rollback_of
from riverrun.cluster.balancing.throttling import removal_of_throttle, throttle_records
from riverrun.cluster.configs.node_configs import Configs
from riverrun.cluster.partitions.assignment import led_first, returned
from riverrun.cluster.partitions.election_rules import election_rules
from riverrun.cluster.partitions.partition_change import Election, LeaderCandidates, change
from riverrun.cluster.partitions.reassignment import alter_partition_reassignments
from riverrun.metadata.image import Image
from riverrun.metadata.records import Record
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName
from riverrun.placement.planner.plan import PlannedMove
from riverrun.placement.planner.schedule import (
    MoveLimits,
    MoveState,
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

DELETED: Final = "the partition was deleted"
CANCELLED: Final = "the move was cancelled"
RETARGETED: Final = "another request chose other replicas"
CHANGED: Final = "the partition has other replicas than when the plan was made"


EXAMINED_MAX: Final = 1000
"""Open moves that one step looks at, besides those under way and those that wait for a broker."""
ROLLED_BACK: Final = "rolled back: "
"""How the reason of a move begins that was cancelled because it did harm or could not end."""


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
        if now is None:
            dropped[number] = DELETED
        elif now.replicas == move.after:
            (moving if now.is_moving else done).append(number)
        elif not now.is_moving and sorted(now.replicas) == sorted(move.before):
            # A cancel without the plan restores the replicas, not always in their order.
            rollback = rollback_of(image, move, plan.header.submitted_ms)
            dropped[number] = CANCELLED if rollback is None else ROLLED_BACK + rollback.text
        else:
            dropped[number] = RETARGETED
    return EndedMoves(done=tuple(done), moving=tuple(moving), dropped=dropped)


class PlanStep(Struct, frozen=True, kw_only=True):
    """The records of a step; none if nothing changes. ``open`` are the numbers of the moves that
    are not done: pass them to the next step, so that it does not look at the others again.
    ``dropped`` are the moves that this step drops, by number, with the reason."""

    records: tuple[Record, ...]
    open: tuple[int, ...]
    dropped: Mapping[int, str]


def open_moves(image: Image, plan: StoredPlan) -> tuple[int, ...]:
    """The moves that are neither done nor dropped, from the image alone."""
    return tuple(
        number
        for number, move in enumerate(plan.moves)
        if number not in plan.dropped
        and state_of(move, partition_now(image, move.topic, move.partition)) is not MoveState.DONE
    )


def advance(
    configs: Configs,
    image: Image,
    plan: StoredPlan,
    *,
    still_open: Sequence[int] | None = None,
    others: Sequence[StoredPlan] = (),
    limits: MoveLimits | None = None,
    now_ms: int = 0,
    away_ms_max: float = AWAY_MS_MAX,
) -> PlanStep:
    """The next step. ``others`` are other plans that run.

    Only the first EXAMINED_MAX open moves are looked at: the moves behind them have to wait anyway.
    """
    past = ended(image, plan)
    destinations = Destinations(image, now_ms, away_ms_max)
    records: list[Record] = []
    dropped = {**past.dropped, **_cancel_lost(configs, image, plan, past, destinations, records)}
    under_way = [number for number in past.moving if number not in dropped]
    known = open_moves(image, plan) if still_open is None else still_open
    settled = {*plan.dropped, *past.done, *dropped}
    open_now = [number for number in known if number not in settled]
    waiting = _examined(plan, open_now, under_way, destinations)
    done, more = _settled(image, plan, [*under_way, *waiting], destinations)
    dropped.update(more)
    settled.update(done, more)
    candidates = {id(plan.moves[n]): n for n in sorted([*under_way, *waiting]) if n not in settled}
    step = next_step(
        [plan.moves[number] for number in candidates.values()],
        partial(partition_now, image),
        limits=limits,
        others_in_flight=list(_in_flight(image, others)),
    )
    started, refused = _started(configs, image, step.start, records)
    dropped.update({candidates[id(move)]: why for move, why in refused})
    _restore_orders(configs, image, plan, past, records)
    records += _elections(configs, image, [plan.moves[number] for number in past.done])
    left = tuple(n for n in open_now if n not in done and n not in dropped)
    if left:
        moving = (*under_way, *[candidates[id(move)] for move in started])
        records += throttle_records(
            image, plan, started=started, moving=[plan.moves[n] for n in under_way]
        )
        records += _progress(plan, dropped, moving, left)
    else:
        every = {**plan.dropped, **dropped}
        count = len(plan.moves) - len(every)
        records += end(image, plan, count, every, others, PlanEnd.DONE, now_ms)
    still = tuple(n for n in open_now if n not in done)
    return PlanStep(records=tuple(records), open=still, dropped=dropped)


def _restore_orders(
    configs: Configs, image: Image, plan: StoredPlan, past: EndedMoves, records: list[Record]
) -> None:
    """Restore the preferred leaders of moves that were cancelled without the plan.

    Such a cancel does not know the original order (``assignment.cancel``). Replicas in an order
    that it does not make were chosen by somebody.
    """
    disordered: list[tuple[PlannedMove, Sequence[int] | None]] = []
    for number in past.dropped:
        move = plan.moves[number]
        now = partition_now(image, move.topic, move.partition)
        order = returned(move.after, move.removing, move.adding)
        if now is None or now.is_moving or now.replicas == move.before:
            continue
        if now.replicas == led_first(order, now.leader):
            disordered.append((move, move.before))
    _reassigned(configs, image, disordered, records)


def _in_flight(image: Image, plans: Iterable[StoredPlan]) -> Iterator[PlannedMove]:
    """The moves under way, without those that have just ended: these hold no place any more."""
    for plan in plans:
        for move in (plan.moves[number] for number in plan.progress.moving):
            now = partition_now(image, move.topic, move.partition)
            if now is not None and now.is_moving:
                yield move


def _cancel_lost(
    configs: Configs,
    image: Image,
    plan: StoredPlan,
    past: EndedMoves,
    destinations: Destinations,
    records: list[Record],
) -> dict[int, str]:
    """Cancel the moves under way that cannot end. One whose cancel is refused goes on."""
    lost: dict[int, str] = {}
    for number in past.moving:
        why = destinations.loss(plan.moves[number])
        if why is not None:
            lost[number] = ROLLED_BACK + why
    targets = [(plan.moves[number], None) for number in lost]
    refused = dict(_reassigned(configs, image, targets, records))
    return {n: why for n, why in lost.items() if _place(plan.moves[n]) not in refused}


def _examined(
    plan: StoredPlan, known: Iterable[int], under_way: Sequence[int], destinations: Destinations
) -> list[int]:
    """The first open moves that neither are under way nor wait for a broker."""
    moving = {*under_way}
    ready = (n for n in known if n not in moving and not destinations.is_away(plan.moves[n]))
    return list(islice(ready, EXAMINED_MAX))


def _settled(
    image: Image, plan: StoredPlan, numbers: Iterable[int], destinations: Destinations
) -> tuple[set[int], dict[int, str]]:
    """The moves that are done without our doing, and those that cannot start, with the reason."""
    done: set[int] = set()
    dropped: dict[int, str] = {}
    for number in numbers:
        move = plan.moves[number]
        now = partition_now(image, move.topic, move.partition)
        match state_of(move, now):
            case MoveState.DONE:
                done.add(number)
            case MoveState.DROPPED:
                dropped[number] = DELETED if now is None else CHANGED
            case MoveState.WAITING:
                why = destinations.refusal(move)
                if why is not None:
                    dropped[number] = why
            case MoveState.MOVING:
                pass
    return done, dropped


def _progress(
    plan: StoredPlan, dropped: Mapping[int, str], moving: tuple[int, ...], left: Sequence[int]
) -> list[Record]:
    every = {**plan.dropped, **dropped}
    progress = PlanProgress(
        moving=moving,
        done=len(plan.moves) - len(left) - len(every),
        waiting=len(left) - len(moving),
        dropped=len(every),
    )
    texts = dropped_texts(every, dropped) if dropped else {}
    if progress != plan.progress:
        texts[PROGRESS] = encode(progress)
    return [plan_record(plan.id, name, text) for name, text in texts.items()]


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
    left = [number for number in open_moves(image, plan) if number not in dropped]
    done = len(plan.moves) - len(left) - len(dropped)
    return [*records, *end(image, plan, done, dropped, others, PlanEnd.CANCELLED, now_ms)]


def end(
    image: Image,
    plan: StoredPlan,
    done: int,
    dropped: Mapping[int, str],
    others: Iterable[StoredPlan],
    how: PlanEnd,
    now_ms: int,
) -> list[Record]:
    """Remove the throttle and all texts of the plan but its header, and add the result."""
    failures = {
        f"{plan.moves[number].topic}-{plan.moves[number].partition}": dropped[number]
        for number in sorted(dropped)[:FAILURES_MAX]
    }
    result = PlanResult(
        end=how,
        ended_ms=now_ms,
        done=done,
        dropped=len(plan.moves) - done,
        rolled_back=sum(why.startswith(ROLLED_BACK) for why in dropped.values()),
        failures=failures,
    )
    return [
        *removal_of_throttle(image, plan, others),
        *removal(image, plan.id, kept=(HEADER,)),
        plan_record(plan.id, RESULT, encode(result)),
    ]


def drop_moves(image: Image, plan: StoredPlan, numbers: Iterable[int], why: str) -> list[Record]:
    """Drop moves that are not under way. One that is done counts as dropped too: it must not start
    again when its partition is moved back."""
    moving = {*plan.progress.moving}
    new = {n: why for n in numbers if n not in plan.dropped and n not in moving}
    if not new:
        return []
    moves = [plan.moves[number] for number in new]
    states = [state_of(one, partition_now(image, one.topic, one.partition)) for one in moves]
    done = states.count(MoveState.DONE)
    now = plan.progress
    progress = PlanProgress(
        moving=now.moving,
        done=max(now.done - done, 0),
        waiting=max(now.waiting - len(new) + done, 0),
        dropped=now.dropped + len(new),
    )
    texts = dropped_texts({**plan.dropped, **new}, new)
    return [
        plan_record(plan.id, name, text)
        for name, text in {**texts, PROGRESS: encode(progress)}.items()
    ]


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
    orders = {_place(move): move.before for move, _ in targets}
    decision = alter_partition_reassignments(configs, image, request, orders)
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
