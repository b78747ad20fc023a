"""SyncGroup: the leader sends the assignment of all members, and each member waits for its part.

Members get their parts only when the assignment is committed. So a new coordinator never has an
older assignment than the members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupMember, GroupState
from riverrun.coordinator.rebalance import sync_error, sync_key, sync_response
from riverrun.coordinator.records import GroupRecord
from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.coordinator.shard_kind import Waiter
    from riverrun.coordinator.turn import Turn
    from riverrun.wire.messages.sync_group_request import SyncGroupRequest


def sync(turn: Turn, group: ClassicGroup, waiter: Waiter, request: SyncGroupRequest) -> None:
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(
        request.protocol_name, group.protocol_name
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    match group.state:
        case GroupState.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        case GroupState.COMPLETING:
            _mark_synced(turn, group, member)
            if member.sync_waiter is not None:
                turn.reply(member.sync_waiter, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_waiter = waiter
            if member.member_id == group.leader_id:
                _store(turn, group, request)
        case GroupState.STABLE:
            _mark_synced(turn, group, member)
            turn.reply(waiter, sync_response(group, member))
        case _:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)


def _store(turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> None:
    """Append the leader's assignment, once per generation.

    A second SyncGroup of the leader must not replace an assignment in flight. Otherwise members
    could own other partitions than the log says.
    """
    if group.generation_in_flight == group.generation:
        return
    group.generation_in_flight = group.generation
    assignments = {part.member_id: part.assignment for part in request.assignments}
    turn.records.append(GroupRecord(group.group_id, group.stored(assignments)))


def _mark_synced(turn: Turn, group: ClassicGroup, member: GroupMember) -> None:
    group.pending_syncs.pop(member.member_id, None)
    if not group.pending_syncs:
        turn.cancel_deadline(sync_key(group))


def _differs(given: str | None, ours: str | None) -> bool:
    return given is not None and ours is not None and given != ours
