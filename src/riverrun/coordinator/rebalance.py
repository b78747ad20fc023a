"""The phases of a rebalance, and the deadlines that keep each of them from lasting for ever.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                │        ▲                                           │
      └──nobody left───┘        └── join, leave, expiry, failed write ◀─────┤
                                ▲                                           │
                                └──────────────── Stable ◀──leader's assignment is stored──┘

An empty group waits ``group.initial.rebalance.delay.ms`` for company before its first generation,
and again as long as somebody came; else the first of a hundred consumers would rebalance a hundred
times. Members that do not join again in time are removed, static ones only by their session.
"""

from __future__ import annotations

from riverrun.coordinator.group import ClassicGroup, GroupState, Member
from riverrun.coordinator.records import GroupRecord, StoredGroup
from riverrun.coordinator.turn import Timer, TimerKey, Turn
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.sync_group_response import SyncGroupResponse


def session_key(group: ClassicGroup, member_id: str) -> TimerKey:
    return (Timer.SESSION, group.group_id, member_id)


def join_key(group: ClassicGroup) -> TimerKey:
    return (Timer.JOIN, group.group_id, "")


def sync_key(group: ClassicGroup) -> TimerKey:
    return (Timer.SYNC, group.group_id, "")


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, protocol_name=None, leader="", member_id=member_id, members=()
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"")


def sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def expect_heartbeat(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """Begin the member's session anew."""
    turn.set_deadline(session_key(group, member.member_id), member.session_timeout_ms)


def rebalance(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Begin a rebalance where that can be; else see whether the one under way is complete."""
    if group.can_rebalance:
        prepare(turn, group, reason)
    else:
        complete_if_all_joined(turn, group)


def prepare(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Call all members to join again."""
    if group.state is GroupState.COMPLETING:
        answer_syncs(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    turn.cancel_deadline(sync_key(group))
    is_initial = group.state is GroupState.EMPTY
    group.become(GroupState.PREPARING, turn.now_ms)
    group.generation_in_flight = None
    turn.note("group rebalances", group.group_id, reason)
    if is_initial:
        delay = turn.settings.initial_rebalance_delay_ms
        group.is_member_added = False
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay, 0)
        turn.set_deadline(join_key(group), delay)
    elif group.have_all_joined:
        complete_join(turn, group)
    else:
        turn.set_deadline(join_key(group), group.rebalance_timeout_ms)


def complete_if_all_joined(turn: Turn, group: ClassicGroup) -> None:
    """End the join phase when nobody is missing; the initial one ends by its delay alone."""
    is_initial = group.previous_state is GroupState.EMPTY
    if group.state is GroupState.PREPARING and group.have_all_joined and not is_initial:
        complete_join(turn, group)


def join_time_is_up(turn: Turn, group: ClassicGroup) -> None:
    """The deadline of the join phase has come."""
    if group.state is not GroupState.PREPARING:
        return
    is_initial = group.previous_state is GroupState.EMPTY
    if is_initial and group.is_member_added and group.initial_delay_left_ms > 0:
        # Somebody came: wait once more, but not longer than the members themselves would.
        delay = min(turn.settings.initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.is_member_added = False
        group.initial_delay_left_ms -= delay
        turn.set_deadline(join_key(group), delay)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Go on with those who joined: the next generation, or an empty group."""
    turn.cancel_deadline(join_key(group))
    for member in list(group.members.values()):
        if not member.is_joining and not member.is_static:
            group.remove(member.member_id)
            turn.cancel_deadline(session_key(group, member.member_id))
            turn.note("member removed", group.group_id, f"{member.member_id} did not join again")
    if not group.elect_joined_leader() and group.members:
        # Only static members are left and none is here: their sessions must end first.
        turn.set_deadline(join_key(group), group.rebalance_timeout_ms)
        return
    group.next_generation(turn.now_ms)
    if group.state is GroupState.EMPTY:
        turn.records.append(GroupRecord(group.group_id, group.stored({})))
        turn.note("group is empty", group.group_id, f"generation {group.generation}")
        return
    for member in group.members.values():
        waiter = group.await_join(member, None)
        if waiter is not None:
            turn.reply(waiter, group.join_response(member))
        expect_heartbeat(turn, group, member)
        member.is_new = member.is_anonymous = False
        group.pending_syncs[member.member_id] = None
    turn.set_deadline(sync_key(group), group.rebalance_timeout_ms)
    turn.note(
        "group has joined",
        group.group_id,
        f"generation {group.generation}, members {len(group.members)}",
    )


def sync_time_is_up(turn: Turn, group: ClassicGroup) -> None:
    """Remove those who joined and then never asked for their part."""
    if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.pending_syncs:
        return
    silent = list(group.pending_syncs)
    for member_id in silent:
        group.remove(member_id)
        turn.cancel_deadline(session_key(group, member_id))
    prepare(turn, group, f"no sync from {', '.join(silent)}")


def remove_member(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """Take a member out; whatever it waits for is answered, so that a live one starts anew."""
    turn.cancel_deadline(session_key(group, member.member_id))
    waiter = group.await_join(member, None)
    if waiter is not None:
        turn.reply(waiter, join_error(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if member.sync_waiter is not None:
        turn.reply(member.sync_waiter, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        member.sync_waiter = None
    group.remove(member.member_id)


def answer_syncs(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    """Send everybody who asked their part, or the error that takes it away."""
    for member in group.members.values():
        if code is not ErrorCode.NONE:
            member.assignment = b""
        if member.sync_waiter is None:
            continue
        is_good = code is ErrorCode.NONE
        turn.reply(
            member.sync_waiter, sync_response(group, member) if is_good else sync_error(code)
        )
        member.sync_waiter = None
        # While it waited its session may have ended without effect: begin a new one.
        expect_heartbeat(turn, group, member)


def assignment_stored(turn: Turn, group: ClassicGroup, stored: StoredGroup) -> None:
    """The leader's assignment is committed. Another rebalance may have begun meanwhile."""
    if group.state is not GroupState.COMPLETING or stored.generation != group.generation:
        return
    if not stored.members:
        return
    assignments = {member.member_id: member.assignment for member in stored.members}
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.generation_in_flight = None
    answer_syncs(turn, group, ErrorCode.NONE)
    group.become(GroupState.STABLE, turn.now_ms)
    turn.note("group is stable", group.group_id, f"generation {group.generation}")


def assignment_refused(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    """The leader's assignment could not be written: tell those who wait and begin again."""
    if group.state is GroupState.COMPLETING and group.generation_in_flight == group.generation:
        answer_syncs(turn, group, code)
        rebalance(turn, group, f"assignment could not be stored: {code.name}")
