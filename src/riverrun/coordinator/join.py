"""JoinGroup: whether a client may join, under which member id, and whether the group rebalances.

The coordinator assigns member ids. A dynamic member must rejoin with its id before it counts
(KIP-394), so that a client that lost the response leaves no stale member behind. A static member
keeps its place by its instance id (KIP-345). When it returns it gets a new member id, which fences
the old one; the group does not rebalance if the member's metadata is unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupMember, GroupState, Protocols
from riverrun.coordinator.rebalance import (
    complete_if_all_joined,
    join_error,
    prepare,
    rebalance,
    restart_session,
    session_key,
    sync_error,
)
from riverrun.coordinator.records import TEXT_BYTES_MAX, GroupRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.join_group_response import JoinGroupResponse

if TYPE_CHECKING:
    from riverrun.coordinator.shard_kind import Waiter
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.wire.messages.join_group_request import JoinGroupRequest

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
ID_SUFFIX_BYTES = 37


def check_request(request: JoinGroupRequest, caller: Caller) -> None:
    """Reject texts that are too long to be stored; Kafka accepts all others too."""
    texts = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
    prefixes = [caller.client_id, request.group_instance_id or ""]
    is_long = any(len(text.encode()) > TEXT_BYTES_MAX for text in texts)
    if is_long or any(len(text.encode()) > TEXT_BYTES_MAX - ID_SUFFIX_BYTES for text in prefixes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A name in the request is too long.")


def join(
    turn: Turn, group: ClassicGroup, waiter: Waiter, caller: Caller, request: JoinGroupRequest
) -> None:
    """Handle JoinGroup for an existing group."""
    member_id = request.member_id
    names = [protocol.name for protocol in request.protocols]
    if not _has_capacity(turn, group, member_id):
        _reject(turn, group, member_id)
        turn.reply(waiter, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    elif not group.supports(request.protocol_type, names):
        turn.reply(waiter, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif member_id:
        _join_known(turn, group, waiter, caller, request)
    elif request.group_instance_id is not None:
        _join_static(turn, group, waiter, caller, request)
    else:
        _join_dynamic(turn, group, waiter, caller, request)


def _has_capacity(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    member = group.members.get(member_id)
    limit = turn.settings.size_max
    if group.state is GroupState.PREPARING:
        # Count the members that have rejoined. If the limit was lowered, the last ones to rejoin
        # are rejected.
        return (member is not None and member.is_joining) or group.joining < limit
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < limit


def _reject(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    member = group.members.get(member_id)
    if member is not None:
        turn.cancel_deadline(session_key(group, member_id))
    group.remove(member_id)
    complete_if_all_joined(turn, group)


def _join_dynamic(
    turn: Turn, group: ClassicGroup, waiter: Waiter, caller: Caller, request: JoinGroupRequest
) -> None:
    member_id = f"{caller.client_id}-{turn.randomness.uuid()}"
    if caller.api_version < MEMBER_ID_REQUIRED_SINCE:
        _add(turn, group, waiter, caller, request, member_id)
        return
    group.pending_joins[member_id] = None
    turn.set_deadline(session_key(group, member_id), request.session_timeout_ms)
    turn.reply(waiter, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _join_static(
    turn: Turn, group: ClassicGroup, waiter: Waiter, caller: Caller, request: JoinGroupRequest
) -> None:
    assert request.group_instance_id is not None
    member_id = f"{request.group_instance_id}-{turn.randomness.uuid()}"
    if request.group_instance_id in group.static_ids:
        _replace(turn, group, waiter, caller, request, member_id)
    else:
        _add(turn, group, waiter, caller, request, member_id)


def _join_known(
    turn: Turn, group: ClassicGroup, waiter: Waiter, caller: Caller, request: JoinGroupRequest
) -> None:
    """A member rejoins, or a client joins with the id that it was assigned."""
    if request.member_id in group.pending_joins:
        if request.group_instance_id is not None:
            # Static members get no pending id, so this id was assigned to another client.
            turn.reply(waiter, join_error(ErrorCode.UNKNOWN_SERVER_ERROR, request.member_id))
            return
        _add(turn, group, waiter, caller, request, request.member_id)
        return
    try:
        member = group.check_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        turn.reply(waiter, join_error(error.code, request.member_id))
        return
    if _needs_rebalance(group, member, protocols_of(request)):
        group.update(
            member,
            protocols_of(request),
            rebalance_timeout_of(request, caller),
            request.session_timeout_ms,
        )
        _await_join(turn, group, member, waiter)
        rebalance(turn, group, f"{member.member_id} rejoins: {request.reason or 'no reason'}")
    elif group.state is GroupState.EMPTY:
        turn.reply(waiter, join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
    else:
        # The client may have missed the last response, so send it again.
        turn.reply(waiter, group.join_response(member))


def _needs_rebalance(group: ClassicGroup, member: GroupMember, protocols: Protocols) -> bool:
    match group.state:
        case GroupState.PREPARING:
            return True
        case GroupState.COMPLETING:
            return member.protocols != protocols
        case GroupState.STABLE:
            # A leader may rejoin for a reason that its own metadata does not show, such as new
            # partitions.
            return member.member_id == group.leader_id or member.protocols != protocols
        case _:
            return False


def _add(
    turn: Turn,
    group: ClassicGroup,
    waiter: Waiter,
    caller: Caller,
    request: JoinGroupRequest,
    member_id: str,
) -> None:
    """Add a member and rebalance."""
    if not group.members:
        group.protocol_type = request.protocol_type
    member = GroupMember(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=rebalance_timeout_of(request, caller),
        session_timeout_ms=request.session_timeout_ms,
        protocols=protocols_of(request),
        is_new=True,
        is_anonymous=not request.member_id and request.group_instance_id is None,
        join_waiter=waiter,
    )
    if group.state is GroupState.PREPARING and group.previous_state is GroupState.EMPTY:
        group.is_member_added = True
    group.add(member)
    turn.set_deadline(session_key(group, member_id), turn.settings.new_member_join_timeout_ms)
    rebalance(turn, group, f"{member_id} joins: {request.reason or 'no reason'}")


def _replace(
    turn: Turn,
    group: ClassicGroup,
    waiter: Waiter,
    caller: Caller,
    request: JoinGroupRequest,
    new_id: str,
) -> None:
    """A static member returns, or a second one uses its instance id: fence the old member id."""
    assert request.group_instance_id is not None
    former_leader = group.leader_id
    old_id = group.static_ids[request.group_instance_id]
    _fence(turn, group, old_id)
    member = group.replace_static(request.group_instance_id, new_id)
    turn.cancel_deadline(session_key(group, old_id))
    group.update(
        member,
        protocols_of(request),
        rebalance_timeout_of(request, caller),
        request.session_timeout_ms,
    )
    member.client_id = caller.client_id
    member.client_host = caller.client_host
    restart_session(turn, group, member)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        group.refresh_topics()
        turn.records.append(GroupRecord(group.group_id, group.stored(group.assignments())))
        turn.reply(waiter, _rejoin_response(group, member, caller, former_leader))
        return
    _await_join(turn, group, member, waiter)
    if group.state is GroupState.PREPARING:
        complete_if_all_joined(turn, group)
    else:
        # In CompletingRebalance the leader may be assigning partitions to the old id.
        prepare(turn, group, f"static member {request.group_instance_id} returns as {new_id}")


def _rejoin_response(
    group: ClassicGroup, member: GroupMember, caller: Caller, former_leader: str | None
) -> JoinGroupResponse:
    """The response to a static member that returns to a stable group."""
    if caller.api_version >= SKIP_ASSIGNMENT_SINCE:
        # KIP-814: tell the leader that it leads but must not assign again.
        is_leader = member.member_id == group.leader_id
        return group.join_response(member, skip_assignment=is_leader)
    # Older clients get the former leader id. A client that found itself leader would assign.
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=former_leader or "",
        member_id=member.member_id,
        members=(),
    )


def _fence(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    member = group.members[member_id]
    joining = group.await_join(member, None)
    if joining is not None:
        turn.reply(joining, join_error(ErrorCode.FENCED_INSTANCE_ID, member_id))
    if member.sync_waiter is not None:
        turn.reply(member.sync_waiter, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        member.sync_waiter = None


def _await_join(turn: Turn, group: ClassicGroup, member: GroupMember, waiter: Waiter) -> None:
    """Make a member wait for the end of the join phase.

    A client may retry on another connection. Then the later request counts, and the earlier one
    gets a response, because it blocks its connection.
    """
    before = group.await_join(member, waiter)
    if before is not None:
        turn.reply(before, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def rebalance_timeout_of(request: JoinGroupRequest, caller: Caller) -> int:
    """Version 0 has no rebalance timeout; the session timeout applies."""
    return request.session_timeout_ms if caller.api_version == 0 else request.rebalance_timeout_ms
