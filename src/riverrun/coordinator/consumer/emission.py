"""Emits records of a group, and the changes that requests and deadlines share.

A record is added to the turn and applied to the group in one step. Checks come first: once a record
is emitted, the request must not fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from riverrun.coordinator.consumer.catalog import metadata_hash
from riverrun.coordinator.consumer.reconciliation import MemberGoal, reconcile
from riverrun.coordinator.consumer.records import (
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    ConsumerRecord,
    CurrentRecord,
    GroupEpoch,
    MemberPhase,
    RegexRecord,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
    TopicSlot,
)
from riverrun.coordinator.consumer.state import EpochGroup, EpochMember
from riverrun.coordinator.consumer.targets import begin_targets
from riverrun.coordinator.turn import Timer, TimerKey, Turn

FIRST_EPOCH: Final = 1
"""The epoch of a new group, whose assignment is empty. Its first member raises it."""
WORK_PER_TURN: Final = 4000
"""Operations of a target computation in one turn: a few milliseconds."""
RECORD_WORK_PER_TURN: Final = 2000
"""The same for the records of targets, which also must fit into one batch."""
SLICE_PAUSE_MS: Final = 1
MEMBER_TIMERS = (Timer.SESSION, Timer.JOIN, Timer.SYNC, Timer.REBALANCE)


def emit(turn: Turn, group: EpochGroup, record: ConsumerRecord) -> None:
    turn.is_serial = True
    turn.records.append(record)
    group.apply(record)


def timer_key(timer: Timer, group: EpochGroup, member_id: str) -> TimerKey:
    return (timer, group.group_id, member_id)


def assign_key(group: EpochGroup) -> TimerKey:
    return (Timer.ASSIGN, group.group_id, "")


def cancel_timers(turn: Turn, group: EpochGroup, member_id: str) -> None:
    for timer in MEMBER_TIMERS:
        turn.cancel_deadline(timer_key(timer, group, member_id))


def restart_member_session(turn: Turn, group: EpochGroup, member: EpochMember) -> None:
    """Give a member a full session from now on."""
    classic = member.details.classic
    timeout_ms = (
        turn.consumer_setting(group.group_id, "session.timeout.ms")
        if classic is None
        else classic.session_timeout_ms
    )
    turn.set_deadline(timer_key(Timer.SESSION, group, member.member_id), timeout_ms)


def bump(turn: Turn, group: EpochGroup, *, is_changed: bool) -> None:
    """Raise the group epoch if something changed, or if subscribed topics differ from before."""
    if not is_changed and not group.is_stale:
        return
    hashed = metadata_hash(turn.view, group.subscribed_topics())
    group.is_stale = False
    if is_changed or hashed != group.at.metadata_hash:
        at = GroupEpoch(max(group.epoch, FIRST_EPOCH) + 1, hashed)
        emit(turn, group, ConsumerEpochRecord(group.group_id, at))
        turn.note("group epoch rises", group.group_id, f"epoch {at.epoch}")


def assign(turn: Turn, group: EpochGroup) -> None:
    """Compute the target assignment of the group epoch, at most once per interval (KIP-1263).

    That of a large group takes several turns. Until then members keep the old target.
    """
    if group.epoch <= group.target_epoch or not group.members:
        return
    interval_ms = turn.consumer_setting(group.group_id, "assignment.interval.ms")
    if group.computation is None:
        age_ms = turn.now_ms - group.target_at.timestamp_ms
        if group.target_epoch > 0 and 0 <= age_ms < interval_ms:
            turn.set_deadline(assign_key(group), interval_ms - age_ms)
            return
        name = group.assignor(turn.settings.consumer_assignors)
        group.computation = begin_targets(group, turn.view, name)
    computation = group.computation
    assert computation.epoch > group.target_epoch, f"{group.group_id} has a newer target"
    if computation.advance(WORK_PER_TURN):
        for member_id, slots in computation.take(RECORD_WORK_PER_TURN):
            if member_id in group.members and group.targets.get(member_id) != slots:
                emit(turn, group, TargetRecord(group.group_id, member_id, slots))
    if not computation.is_taken:
        if group.target_epoch == 0:
            # A target without partitions: a member that is told epoch 0 would have to join again.
            emit(turn, group, TargetEpochRecord(group.group_id, TargetEpoch(FIRST_EPOCH, 0)))
        turn.set_deadline(assign_key(group), SLICE_PAUSE_MS)
        return
    group.computation = None
    at = TargetEpoch(computation.epoch, turn.now_ms)
    emit(turn, group, TargetEpochRecord(group.group_id, at))
    detail = f"epoch {at.epoch}, members {computation.members}, assignor {computation.assignor}"
    turn.note("group has a target assignment", group.group_id, detail)
    if group.epoch > at.epoch:
        turn.set_deadline(assign_key(group), max(interval_ms, SLICE_PAUSE_MS))
    else:
        turn.cancel_deadline(assign_key(group))


def advance(
    turn: Turn,
    group: EpochGroup,
    member: EpochMember,
    owned: Iterable[TopicSlot] | None,
    *,
    is_subscription_changed: bool,
) -> None:
    """Reconcile a member with its target assignment."""
    if not is_subscription_changed and member.is_reconciled_to(group.target_epoch):
        return
    topics = group.topics_of(member)
    member_id = member.member_id

    def is_subscribed(slot: TopicSlot) -> bool:
        topic = turn.view.topic_by_id(slot[0])
        return topic is not None and topic.name in topics

    goal = MemberGoal(
        epoch=group.target_epoch,
        target=group.targets.get(member_id, ()),
        owned=None if owned is None else frozenset(owned),
        is_subscribed=is_subscribed,
        is_held_by_another=lambda slot: group.owners.get(slot, member_id) != member_id,
        is_subscription_changed=is_subscription_changed,
    )
    after = reconcile(member.current, goal)
    if after == member.current:
        return
    emit(turn, group, CurrentRecord(group.group_id, member_id, after))
    if member.uses_classic_protocol:
        return
    key = timer_key(Timer.REBALANCE, group, member_id)
    if after.phase is MemberPhase.UNREVOKED:
        turn.set_deadline(key, member.details.rebalance_timeout_ms)
    else:
        turn.cancel_deadline(key)


def remove_members(turn: Turn, group: EpochGroup, member_ids: Iterable[str]) -> None:
    """Remove members, and raise the group epoch."""
    group_id = group.group_id
    removed = [member_id for member_id in member_ids if member_id in group.members]
    if not removed:
        return
    for member_id in removed:
        cancel_timers(turn, group, member_id)
        emit_removal(turn, group, member_id)
    wanted = group.subscribed_regexes()
    for regex in [one for one in group.regexes if one not in wanted]:
        emit(turn, group, RegexRecord(group_id, regex, None))
    bump(turn, group, is_changed=True)
    if not group.members:
        group.computation = None
        # Time 0: the next member need not wait for the interval between assignments.
        emit(turn, group, TargetEpochRecord(group_id, TargetEpoch(group.epoch, 0)))
        turn.cancel_deadline(assign_key(group))


def emit_removal(turn: Turn, group: EpochGroup, member_id: str) -> None:
    emit(turn, group, CurrentRecord(group.group_id, member_id, None))
    if member_id in group.targets:
        emit(turn, group, TargetRecord(group.group_id, member_id, None))
    emit(turn, group, ConsumerMemberRecord(group.group_id, member_id, None))


def emit_group_removal(turn: Turn, group: EpochGroup) -> None:
    """Delete all records of a group."""
    turn.cancel_deadline(assign_key(group))
    for member_id in list(group.members):
        cancel_timers(turn, group, member_id)
        emit_removal(turn, group, member_id)
    for regex in list(group.regexes):
        emit(turn, group, RegexRecord(group.group_id, regex, None))
    emit(turn, group, TargetEpochRecord(group.group_id, None))
    emit(turn, group, ConsumerEpochRecord(group.group_id, None))
