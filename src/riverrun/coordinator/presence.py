"""Heartbeat, LeaveGroup and the end of a session: who is still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.rebalance import (
    complete_if_all_joined,
    complete_join,
    expect_heartbeat,
    rebalance,
    remove_member,
    session_key,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Turn, Waiter
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity


def heartbeat(turn: Turn, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    """Keep a member's session; REBALANCE_IN_PROGRESS is how it learns that it must join again."""
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    expect_heartbeat(turn, group, member)
    is_preparing = group.state is GroupState.PREPARING
    return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE


def leave(turn: Turn, group: ClassicGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Members leave, or an administrator removes static ones by their instance id."""
    results = []
    for identity in request.members:
        try:
            _leave_one(turn, group, identity)
            code = ErrorCode.NONE
        except KafkaError as error:
            code = error.code
        results.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=code,
            )
        )
    if any(result.error_code is ErrorCode.NONE for result in results):
        if group.state is GroupState.PREPARING:
            complete_if_all_joined(turn, group)
        elif group.state is not GroupState.EMPTY:
            rebalance(turn, group, "members leave")
    return LeaveGroupResponse(error_code=ErrorCode.NONE, members=tuple(results))


def _leave_one(turn: Turn, group: ClassicGroup, identity: MemberIdentity) -> None:
    member_id = identity.member_id
    if not member_id:
        instance_id = identity.group_instance_id
        known = None if instance_id is None else group.static_ids.get(instance_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        remove_member(turn, group, group.members[known])
    elif member_id in group.pending_joins:
        group.remove(member_id)
        turn.cancel_deadline(session_key(group, member_id))
    else:
        remove_member(turn, group, group.check_member(member_id, identity.group_instance_id))
    turn.note("member leaves", group.group_id, f"{member_id}: {identity.reason or 'no reason'}")


def session_is_up(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """Nothing was heard of a member, or of the owner of a new id, for its whole session."""
    if member_id in group.pending_joins:
        group.remove(member_id)
        _go_on_without(turn, group)
        return
    member = group.members.get(member_id)
    if member is None or member.is_excused:
        return
    remove_member(turn, group, member)
    turn.note("member expired", group.group_id, member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING):
        rebalance(turn, group, f"{member_id} expired")
    else:
        _go_on_without(turn, group)


def _go_on_without(turn: Turn, group: ClassicGroup) -> None:
    if group.state is GroupState.PREPARING and group.have_all_joined:
        complete_join(turn, group)


def connection_is_gone(turn: Turn, group: ClassicGroup, waiter: Waiter) -> None:
    """Nobody is left to hear the answer to a waiting request.

    Kafka cannot see this and counts the member as joined. We see it, so the member has to join
    again, by its id or its instance id, before its session ends; one that was never told its id
    could not, and is removed at once.
    """
    for member in list(group.members.values()):
        if member.sync_waiter == waiter:
            member.sync_waiter = None
            expect_heartbeat(turn, group, member)
        elif member.join_waiter == waiter:
            group.await_join(member, None)
            expect_heartbeat(turn, group, member)
            if member.is_anonymous:
                remove_member(turn, group, member)
                complete_if_all_joined(turn, group)
