"""SyncGroup: the leader brings everybody's assignment, the others wait for theirs.

The assignment counts when it is committed: only then does anybody get a part, so that no
coordinator that takes over can know less than the members do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from riverrun.coordinator.group import ClassicGroup, GroupState, Member
from riverrun.coordinator.rebalance import sync_error, sync_key, sync_response
from riverrun.coordinator.records import GroupRecord
from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Turn, Waiter
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
            _has_synced(turn, group, member)
            if member.sync_waiter is not None:
                turn.reply(member.sync_waiter, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
            member.sync_waiter = waiter
            if member.member_id == group.leader_id:
                _store(turn, group, request)
        case GroupState.STABLE:
            _has_synced(turn, group, member)
            turn.reply(waiter, sync_response(group, member))
        case _:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)


def _store(turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> None:
    """Write the leader's assignment, once in a generation.

    A leader that asks again while it is being written must not replace it: the members would then
    own something else than the log says.
    """
    if group.generation_in_flight == group.generation:
        return
    group.generation_in_flight = group.generation
    assignments = {part.member_id: part.assignment for part in request.assignments}
    turn.records.append(GroupRecord(group.group_id, group.stored(assignments)))


def _has_synced(turn: Turn, group: ClassicGroup, member: Member) -> None:
    group.pending_syncs.pop(member.member_id, None)
    if not group.pending_syncs:
        turn.cancel_deadline(sync_key(group))


def _differs(asked: str | None, ours: str | None) -> bool:
    return asked is not None and ours is not None and asked != ours
