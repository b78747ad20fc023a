"""Moves one member towards its target assignment, without a partition ever having two owners.

    STABLE ──target has a new epoch──▶ give up what is not in the target
      │                                   │ still owned by the client
      │                                   ▼
      │                               UNREVOKED (stays in its epoch)
      │                                   │ the client no longer reports it
      ▼                                   ▼
    next epoch: take free partitions ──some are held by others──▶ UNRELEASED
      └──all are free──▶ STABLE

A member reports the partitions that it owns. Partitions to be given up stay with the member until
it reports a list without them. Only then they are free for other members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from riverrun.coordinator.consumer.records import (
    CurrentAssignment,
    Held,
    MemberPhase,
    TopicSlot,
)
from riverrun.model.errors import ErrorCode, KafkaError


class MemberGoal(Struct, frozen=True, kw_only=True):
    """Where a member has to get, and what limits it."""

    epoch: int
    """The epoch of the target assignment."""
    target: Collection[TopicSlot]
    owned: Collection[TopicSlot] | None
    """The partitions that the client reports; None if its request has no list."""
    is_subscribed: Callable[[TopicSlot], bool]
    is_held_by_another: Callable[[TopicSlot], bool]
    is_subscription_changed: bool = False


def reconcile(current: CurrentAssignment, goal: MemberGoal) -> CurrentAssignment:
    """The next state of a member, or the same one if it cannot advance."""
    match current.phase:
        case MemberPhase.STABLE:
            if current.epoch != goal.epoch:
                return _next(current, goal)
            return _without_unsubscribed(current, goal) if goal.is_subscription_changed else current
        case MemberPhase.UNREVOKED:
            if not _owns_any(goal, current.revoking):
                return _next(current, goal)
            return _without_unsubscribed(current, goal) if goal.is_subscription_changed else current
        case MemberPhase.UNRELEASED:
            return _next(current, goal)
        case MemberPhase.UNKNOWN:
            if goal.owned is None or goal.owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in an unknown state. The member must abandon "
                    "all its partitions and rejoin.",
                )
            return _next(current, goal)


def _owns_any(goal: MemberGoal, slots: Held) -> bool:
    """Without a list the client may still own everything."""
    return goal.owned is None or any(slot in slots for slot in goal.owned)


def _next(current: CurrentAssignment, goal: MemberGoal) -> CurrentAssignment:
    wanted = {slot: None for slot in goal.target if goal.is_subscribed(slot)}
    kept = {slot: epoch for slot, epoch in current.assigned.items() if slot in wanted}
    revoked = {slot: epoch for slot, epoch in current.assigned.items() if slot not in wanted}
    if revoked and _owns_any(goal, revoked):
        return _moved(current, current.epoch, MemberPhase.UNREVOKED, kept, revoked)
    missing = [slot for slot in wanted if slot not in kept]
    free = [slot for slot in missing if not goal.is_held_by_another(slot)]
    assigned = {**kept, **dict.fromkeys(free, goal.epoch)}
    is_complete = len(free) == len(missing)
    phase = MemberPhase.STABLE if is_complete else MemberPhase.UNRELEASED
    return _moved(current, goal.epoch, phase, assigned, {})


def _without_unsubscribed(current: CurrentAssignment, goal: MemberGoal) -> CurrentAssignment:
    """Give up topics that the member no longer subscribes to, before a new target exists."""
    kept = {slot: epoch for slot, epoch in current.assigned.items() if goal.is_subscribed(slot)}
    if len(kept) == len(current.assigned):
        return current
    dropped = {slot: epoch for slot, epoch in current.assigned.items() if slot not in kept}
    revoking = {**current.revoking, **dropped}
    if _owns_any(goal, revoking):
        return _moved(current, current.epoch, MemberPhase.UNREVOKED, kept, revoking)
    return _moved(current, current.epoch, current.phase, kept, current.revoking)


def _moved(
    current: CurrentAssignment, epoch: int, phase: MemberPhase, assigned: Held, revoking: Held
) -> CurrentAssignment:
    # A client that lost the response still has the epoch before, so that one stays known.
    is_same = epoch == current.epoch
    return replace(
        current,
        epoch=epoch,
        previous_epoch=current.previous_epoch if is_same else current.epoch,
        phase=phase,
        assigned=assigned,
        revoking=revoking,
    )
