"""JoinGroup: who may come in, under which id, and whether that moves the others.

Ids are given by the coordinator. A dynamic member must come back with its id before it counts
(KIP-394), so that a client that lost the answer leaves no ghost behind. A static member keeps its
place by its instance id (KIP-345): one that returns gets a new member id, which fences the old one,
and the group goes on without a rebalance when nothing changed for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupState, Member, Protocols
from riverrun.coordinator.rebalance import (
    complete_if_all_joined,
    expect_heartbeat,
    join_error,
    prepare,
    rebalance,
    session_key,
    sync_error,
)
from riverrun.coordinator.records import TEXT_BYTES_MAX, GroupRecord
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.join_group_response import JoinGroupResponse

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Caller, Turn, Waiter
    from riverrun.wire.messages.join_group_request import JoinGroupRequest

MEMBER_ID_REQUIRED_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
ID_SUFFIX_BYTES = 37


def check_request(request: JoinGroupRequest, caller: Caller) -> None:
    """Refuse texts that could not be stored; whatever can be stored is accepted, as by Kafka."""
    texts = [request.protocol_type, *(protocol.name for protocol in request.protocols)]
    prefixes = [caller.client_id, request.group_instance_id or ""]
    is_long = any(len(text.encode()) > TEXT_BYTES_MAX for text in texts)
    if is_long or any(len(text.encode()) > TEXT_BYTES_MAX - ID_SUFFIX_BYTES for text in prefixes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A name in the request is too long.")


def join(
    turn: Turn, group: ClassicGroup, waiter: Waiter, caller: Caller, request: JoinGroupRequest
) -> None:
    member_id = request.member_id
    names = [protocol.name for protocol in request.protocols]
    if not _has_room(turn, group, member_id):
        _turn_away(turn, group, member_id)
        turn.reply(waiter, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
    elif not group.supports(request.protocol_type, names):
        turn.reply(waiter, join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif member_id:
        _join_known(turn, group, waiter, caller, request)
    elif request.group_instance_id is not None:
        _join_static(turn, group, waiter, caller, request)
    else:
        _join_dynamic(turn, group, waiter, caller, request)


def _has_room(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    member = group.members.get(member_id)
    limit = turn.settings.size_max
    if group.state is GroupState.PREPARING:
        # Counted by those who wait: the limit may have been lowered, and then the last ones to
        # join again must go.
        return (member is not None and member.is_joining) or group.joining < limit
    if group.state is GroupState.EMPTY:
        return True
    return member is not None or len(group.members) < limit


def _turn_away(turn: Turn, group: ClassicGroup, member_id: str) -> None:
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
    """A member joins again, or brings the id that it was given."""
    if request.member_id in group.pending_joins:
        if request.group_instance_id is not None:
            # Static members are never asked to come back, so this id was not given to this one.
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
        rebalance(turn, group, f"{member.member_id} joins again: {request.reason or 'no reason'}")
    elif group.state is GroupState.EMPTY:
        turn.reply(waiter, join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
    else:
        # It may have missed the answer to its last request: here it is again.
        turn.reply(waiter, group.join_response(member))


def _needs_rebalance(group: ClassicGroup, member: Member, protocols: Protocols) -> bool:
    match group.state:
        case GroupState.PREPARING:
            return True
        case GroupState.COMPLETING:
            return member.protocols != protocols
        case GroupState.STABLE:
            # A leader that joins again knows a reason that need not show in its own metadata,
            # such as new partitions.
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
    member = Member(
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
    """A static member is back, or a second one has taken its name; the old id is fenced."""
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
    expect_heartbeat(turn, group, member)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        group.refresh_topics()
        turn.records.append(GroupRecord(group.group_id, group.stored(group.assignments())))
        turn.reply(waiter, _returned(group, member, caller, former_leader))
        return
    _await_join(turn, group, member, waiter)
    if group.state is GroupState.PREPARING:
        complete_if_all_joined(turn, group)
    else:
        # In CompletingRebalance the leader may be assigning to the old id right now.
        prepare(turn, group, f"static member {request.group_instance_id} is back as {new_id}")


def _returned(
    group: ClassicGroup, member: Member, caller: Caller, former_leader: str | None
) -> JoinGroupResponse:
    """The answer to a static member that returns to a stable group."""
    if caller.api_version >= SKIP_ASSIGNMENT_SINCE:
        # KIP-814: a leader learns that it leads but need not assign anew.
        is_leader = member.member_id == group.leader_id
        return group.join_response(member, skip_assignment=is_leader)
    # Older clients must not believe that they lead, or they would assign anew.
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


def _await_join(turn: Turn, group: ClassicGroup, member: Member, waiter: Waiter) -> None:
    """Let a member wait for the end of the join phase.

    A client that gave up on its connection asks again on another one: the later request counts,
    and the earlier one is answered, for it holds back its connection.
    """
    before = group.await_join(member, waiter)
    if before is not None:
        turn.reply(before, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return tuple((protocol.name, protocol.metadata) for protocol in request.protocols)


def rebalance_timeout_of(request: JoinGroupRequest, caller: Caller) -> int:
    """Version 0 knows no such timeout and rebalances within the session."""
    return request.session_timeout_ms if caller.api_version == 0 else request.rebalance_timeout_ms
