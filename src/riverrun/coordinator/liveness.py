"""Heartbeat, LeaveGroup, session expiry and lost connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.rebalance import (
    complete_if_all_joined,
    complete_join,
    rebalance,
    remove_member,
    restart_session,
    session_key,
)
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from riverrun.coordinator.shard_kind import Waiter
    from riverrun.coordinator.turn import Turn
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity


def heartbeat(turn: Turn, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
    """Extend a member's session; REBALANCE_IN_PROGRESS tells the member to rejoin."""
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    restart_session(turn, group, member)
    is_preparing = group.state is GroupState.PREPARING
    return ErrorCode.REBALANCE_IN_PROGRESS if is_preparing else ErrorCode.NONE


def leave(turn: Turn, group: ClassicGroup, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members at their own request, or static ones by instance id for an administrator."""
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


def all_unknown(request: LeaveGroupRequest) -> LeaveGroupResponse:
    """The response for a group that does not exist."""
    members = tuple(
        MemberResponse(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        )
        for member in request.members
    )
    return LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)


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


def session_expired(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """Remove a member, or a pending member id, without a heartbeat for a whole session."""
    if member_id in group.pending_joins:
        group.remove(member_id)
        _complete_if_ready(turn, group)
        return
    member = group.members.get(member_id)
    if member is None or member.is_excused:
        return
    remove_member(turn, group, member)
    turn.note("member expired", group.group_id, member_id)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING):
        rebalance(turn, group, f"{member_id} expired")
    else:
        _complete_if_ready(turn, group)


def _complete_if_ready(turn: Turn, group: ClassicGroup) -> None:
    if group.state is GroupState.PREPARING and group.have_all_joined:
        complete_join(turn, group)


def connection_lost(turn: Turn, group: ClassicGroup, waiter: Waiter) -> None:
    """Drop a pending request whose connection was closed.

    Kafka does not detect this and counts the member as joined. Here the member must rejoin, by its
    member id or instance id, before its session expires. A member that never received its id
    cannot rejoin and is removed at once.
    """
    for member in list(group.members.values()):
        if member.sync_waiter == waiter:
            member.sync_waiter = None
            restart_session(turn, group, member)
        elif member.join_waiter == waiter:
            group.await_join(member, None)
            restart_session(turn, group, member)
            if member.is_anonymous:
                remove_member(turn, group, member)
                complete_if_all_joined(turn, group)
