"""Members that use the classic protocol in a group of the consumer protocol (online migration).

While a group is migrated, some clients still send JoinGroup, SyncGroup, Heartbeat and LeaveGroup.
They are answered from the target assignment: the member epoch is their generation, Heartbeat asks
them to rejoin when there is something to do, and SyncGroup returns their partitions. Each must
rejoin and sync within its rebalance timeout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from riverrun.client.consumer_protocol import (
    MemberSubscription,
    NotConsumerProtocol,
    read_member_subscription,
    write_assignment,
)
from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.emission import (
    assign,
    bump,
    restart_member_session,
    timer_key,
)
from riverrun.coordinator.consumer.heartbeat import check_capacity, replace_static, update_member
from riverrun.coordinator.consumer.records import (
    ClassicSupport,
    MemberDetails,
    MemberPhase,
    TopicSlot,
    by_topic,
)
from riverrun.coordinator.consumer.state import EpochGroup, EpochMember
from riverrun.coordinator.group import CONSUMER
from riverrun.coordinator.join import (
    MEMBER_ID_REQUIRED_SINCE,
    protocols_of,
    rebalance_timeout_of,
)
from riverrun.coordinator.turn import Timer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.join_group_response import JoinGroupResponse
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.join_group_request import JoinGroupRequest
    from riverrun.wire.messages.leave_group_request import MemberIdentity
    from riverrun.wire.messages.sync_group_request import SyncGroupRequest


def join_classic(
    turn: Turn, group: EpochGroup, caller: Caller, request: JoinGroupRequest
) -> JoinGroupResponse:
    """JoinGroup of a member that uses the classic protocol."""
    subscription = _check_join(group, request)
    instance_id = request.group_instance_id
    if not request.member_id and instance_id is None:
        member_id = f"{caller.client_id}-{turn.randomness.uuid()}"
        if caller.api_version >= MEMBER_ID_REQUIRED_SINCE:
            return _join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)
    elif not request.member_id:
        member_id = f"{instance_id}-{turn.randomness.uuid()}"
    else:
        member_id = request.member_id
    known = group.static_member(instance_id)
    if request.member_id and instance_id is not None:
        known = group.check_static(member_id, instance_id)
    if known is None and member_id not in group.members:
        check_capacity(turn, group)
    if known is not None and known.member_id != member_id:
        replace_static(turn, group, known, member_id)
    details = MemberDetails(
        instance_id=instance_id,
        rack_id=subscription.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        topics=tuple(sorted(dict.fromkeys(subscription.topics))),
        rebalance_timeout_ms=rebalance_timeout_of(request, caller),
        classic=ClassicSupport(request.session_timeout_ms, protocols_of(request)),
    )
    owned = slots_of(turn.view, subscription.owned)
    member = update_member(turn, group, member_id, details, owned, visible=None)
    restart_member_session(turn, group, member)
    turn.cancel_deadline(timer_key(Timer.JOIN, group, member_id))
    turn.set_deadline(timer_key(Timer.SYNC, group, member_id), details.rebalance_timeout_ms)
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=member.current.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0].name,
        leader="",
        member_id=member_id,
        members=(),
    )


def _check_join(group: EpochGroup, request: JoinGroupRequest) -> MemberSubscription:
    """The subscription, if the member's protocols fit those of the other classic members."""
    names = [protocol.name for protocol in request.protocols]
    others = [one for one in group.classic_members() if one.member_id != request.member_id]
    for other in others:
        assert other.details.classic is not None
        supported = dict(other.details.classic.protocols)
        names = [name for name in names if name in supported]
    if request.protocol_type != CONSUMER or not names:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {request.member_id}'s protocols are not supported.",
        )
    try:
        return read_member_subscription(request.protocols[0].metadata)
    except NotConsumerProtocol as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, protocol_name=None, leader="", member_id=member_id, members=()
    )


def slots_of(view: GroupCatalog, topics: Iterable[tuple[str, Iterable[int]]]) -> list[TopicSlot]:
    """Partitions by topic id; topics that do not exist are left out."""
    return [
        (topic.id, index)
        for name, indexes in topics
        if (topic := view.topic(name)) is not None
        for index in indexes
        if 0 <= index < topic.partitions
    ]


def sync_classic(turn: Turn, group: EpochGroup, request: SyncGroupRequest) -> SyncGroupResponse:
    """SyncGroup: the partitions that the member has in this epoch."""
    member = _check_classic(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    classic = member.details.classic
    assert classic is not None
    protocol_name = classic.protocols[0][0]
    is_other_type = request.protocol_type not in (None, CONSUMER)
    if is_other_type or request.protocol_name not in (None, protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if _is_behind(group, member):
        _await_join(turn, group, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    turn.cancel_deadline(timer_key(Timer.SYNC, group, member.member_id))
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=CONSUMER,
        protocol_name=protocol_name,
        assignment=write_assignment(names_of(turn.view, member.current.assigned)),
    )


def names_of(view: GroupCatalog, slots: Iterable[TopicSlot]) -> dict[str, tuple[int, ...]]:
    """Partitions by topic name, without deleted topics."""
    return {
        topic.name: tuple(indexes)
        for topic_id, indexes in by_topic(slots).items()
        if (topic := view.topic_by_id(topic_id)) is not None
    }


def heartbeat_classic(turn: Turn, group: EpochGroup, request: HeartbeatRequest) -> ErrorCode:
    """Extend the session. REBALANCE_IN_PROGRESS tells the member to rejoin.

    If only classic members are left, their heartbeats must notice changes of the group.
    """
    member = _check_classic(group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    restart_member_session(turn, group, member)
    bump(turn, group, is_changed=False)
    assign(turn, group)
    phase = member.current.phase
    has_work = phase is MemberPhase.UNREVOKED or (
        phase is MemberPhase.UNRELEASED and _has_free_partition(group, member)
    )
    if not has_work and not _is_behind(group, member):
        return ErrorCode.NONE
    _await_join(turn, group, member)
    return ErrorCode.REBALANCE_IN_PROGRESS


def check_leaving(group: EpochGroup, identity: MemberIdentity) -> EpochMember:
    """The member that a LeaveGroup removes, whichever protocol it uses. An administrator names
    only an instance id."""
    if not identity.member_id:
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member
    return group.check_member(identity.member_id, identity.group_instance_id)


def _check_classic(group: EpochGroup, member_id: str, instance_id: str | None) -> EpochMember:
    member = group.check_member(member_id, instance_id)
    if not member.uses_classic_protocol:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol."
        )
    return member


def _check_generation(member: EpochMember, generation: int) -> None:
    if generation != member.current.epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch "
            f"{member.current.epoch}.",
        )


def _is_behind(group: EpochGroup, member: EpochMember) -> bool:
    """A member that gives up partitions has rejoined already."""
    is_revoking = member.current.phase is MemberPhase.UNREVOKED
    return member.current.epoch < group.target_epoch and not is_revoking


def _has_free_partition(group: EpochGroup, member: EpochMember) -> bool:
    return any(
        slot not in group.owners and slot not in member.current.assigned
        for slot in group.targets.get(member.member_id, ())
    )


def _await_join(turn: Turn, group: EpochGroup, member: EpochMember) -> None:
    key = timer_key(Timer.JOIN, group, member.member_id)
    if turn.deadlines.get(key) is None:
        turn.set_deadline(key, member.details.rebalance_timeout_ms)
