"""The phases of a rebalance, and the deadlines that bound them.

    Empty ──join──▶ PreparingRebalance ──all joined, or timeout──▶      CompletingRebalance
      ▲                │        ▲                                           │
      └──no members────┘        └── join, leave, expiry, failed write ◀─────┤
                                ▲                                           │
                                └──────────────── Stable ◀──leader's assignment is stored──┘

An empty group waits ``group.initial.rebalance.delay.ms`` for more members before its first
generation, and again as long as members arrive. Otherwise a hundred consumers that start together
would cause a hundred rebalances. Members that do not rejoin in time are removed, static members
only when their session expires.
"""

from __future__ import annotations

from riverrun.coordinator.group import ClassicGroup, GroupMember, GroupState
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


def sync_response(group: ClassicGroup, member: GroupMember) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def restart_session(turn: Turn, group: ClassicGroup, member: GroupMember) -> None:
    """Give a member a full session from now on."""
    turn.set_deadline(session_key(group, member.member_id), member.session_timeout_ms)


def rebalance(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Start a rebalance, or complete the current one if all members have joined."""
    if group.can_rebalance:
        prepare(turn, group, reason)
    else:
        complete_if_all_joined(turn, group)


def prepare(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Start the join phase: all members must rejoin."""
    if group.state is GroupState.COMPLETING:
        reply_to_syncs(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
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
    """End the join phase if all members have joined. The initial delay always runs out."""
    is_initial = group.previous_state is GroupState.EMPTY
    if group.state is GroupState.PREPARING and group.have_all_joined and not is_initial:
        complete_join(turn, group)


def join_timed_out(turn: Turn, group: ClassicGroup) -> None:
    """End the join phase at its deadline, or extend the initial delay."""
    if group.state is not GroupState.PREPARING:
        return
    is_initial = group.previous_state is GroupState.EMPTY
    if is_initial and group.is_member_added and group.initial_delay_left_ms > 0:
        # A member joined: wait again, up to the rebalance timeout of the members in all.
        delay = min(turn.settings.initial_rebalance_delay_ms, group.initial_delay_left_ms)
        group.is_member_added = False
        group.initial_delay_left_ms -= delay
        turn.set_deadline(join_key(group), delay)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Start the next generation with the members that joined, or empty the group."""
    turn.cancel_deadline(join_key(group))
    for member in list(group.members.values()):
        if not member.is_joining and not member.is_static:
            group.remove(member.member_id)
            turn.cancel_deadline(session_key(group, member.member_id))
            turn.note("member removed", group.group_id, f"{member.member_id} did not rejoin")
    if not group.elect_joined_leader() and group.members:
        # Only static members are left and none has joined. They stay until their sessions expire.
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
        restart_session(turn, group, member)
        member.is_new = member.is_anonymous = False
        group.pending_syncs[member.member_id] = None
    turn.set_deadline(sync_key(group), group.rebalance_timeout_ms)
    turn.note(
        "group joined",
        group.group_id,
        f"generation {group.generation}, members {len(group.members)}",
    )


def sync_timed_out(turn: Turn, group: ClassicGroup) -> None:
    """Remove members that joined but did not send SyncGroup in time."""
    if group.state not in (GroupState.COMPLETING, GroupState.STABLE) or not group.pending_syncs:
        return
    silent = list(group.pending_syncs)
    for member_id in silent:
        group.remove(member_id)
        turn.cancel_deadline(session_key(group, member_id))
    prepare(turn, group, f"no sync from {', '.join(silent)}")


def remove_member(turn: Turn, group: ClassicGroup, member: GroupMember) -> None:
    """Remove a member and fail its pending requests, so that a live client joins again."""
    turn.cancel_deadline(session_key(group, member.member_id))
    waiter = group.await_join(member, None)
    if waiter is not None:
        turn.reply(waiter, join_error(ErrorCode.UNKNOWN_MEMBER_ID, ""))
    if member.sync_waiter is not None:
        turn.reply(member.sync_waiter, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        member.sync_waiter = None
    group.remove(member.member_id)


def fail_waiters(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    """Fail all pending requests of a group."""
    for member in group.members.values():
        waiter = group.await_join(member, None)
        if waiter is not None:
            turn.reply(waiter, join_error(code, member.member_id))
        if member.sync_waiter is not None:
            turn.reply(member.sync_waiter, sync_error(code))
            member.sync_waiter = None


def reply_to_syncs(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    """Send the assignments, or an error that revokes them, to all waiting members."""
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
        # The session may have expired without effect while the member waited.
        restart_session(turn, group, member)


def assignment_stored(turn: Turn, group: ClassicGroup, stored: StoredGroup) -> None:
    """Make the group stable with a committed assignment, unless it rebalances again."""
    if group.state is not GroupState.COMPLETING or stored.generation != group.generation:
        return
    if not stored.members:
        return
    assignments = {member.member_id: member.assignment for member in stored.members}
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.generation_in_flight = None
    reply_to_syncs(turn, group, ErrorCode.NONE)
    group.become(GroupState.STABLE, turn.now_ms)
    turn.note("group is stable", group.group_id, f"generation {group.generation}")


def assignment_refused(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    """Fail the pending SyncGroups and rebalance, because the assignment was not stored."""
    if group.state is GroupState.COMPLETING and group.generation_in_flight == group.generation:
        reply_to_syncs(turn, group, code)
        rebalance(turn, group, f"assignment could not be stored: {code.name}")
