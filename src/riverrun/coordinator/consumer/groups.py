"""The groups of the consumer protocol in one shard: durable records and state in memory.

The durable state of a group is its last committed record of each key. The state in memory is built
from it when the partition is loaded, runs ahead of it by the records in flight, and is built again
if the log refuses one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from riverrun.coordinator.consumer.classic_members import (
    check_leaving,
    heartbeat_classic,
    join_classic,
    sync_classic,
)
from riverrun.coordinator.consumer.emission import (
    assign,
    assign_key,
    cancel_timers,
    emit_group_removal,
    remove_members,
    restart_member_session,
    timer_key,
)
from riverrun.coordinator.consumer.records import (
    ConsumerRecord,
    MemberPhase,
    record_key,
)
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.turn import Timer
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse, MemberResponse

if TYPE_CHECKING:
    from riverrun.coordinator.shard_kind import Waiter
    from riverrun.coordinator.turn import Caller, Turn
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.join_group_request import JoinGroupRequest
    from riverrun.wire.messages.leave_group_request import LeaveGroupRequest
    from riverrun.wire.messages.sync_group_request import SyncGroupRequest


class ConsumerGroups:
    """All groups of the consumer protocol of one partition."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[tuple[int, str], ConsumerRecord]] = {}
        self.groups: dict[str, EpochGroup] = {}
        self._in_flight: dict[str, int] = {}
        """Records of each group that are neither committed nor refused yet."""

    # The log

    def replay(self, record: ConsumerRecord) -> None:
        """Apply a committed record."""
        records = self.stored.setdefault(record.group_id, {})
        if record.value is None:
            records.pop(record_key(record), None)
        else:
            records[record_key(record)] = record
        if not records:
            del self.stored[record.group_id]

    def sent(self, record: ConsumerRecord) -> None:
        """Note that a record is in flight."""
        self._in_flight[record.group_id] = self._in_flight.get(record.group_id, 0) + 1

    def settled(self, record: ConsumerRecord) -> None:
        """Note that a record is committed or refused."""
        self._in_flight[record.group_id] -= 1
        if not self._in_flight[record.group_id]:
            del self._in_flight[record.group_id]

    def committed(self, group_id: str) -> EpochGroup | None:
        """A group as the log has it. Descriptions must not show what may still be lost."""
        if group_id not in self._in_flight:
            return self.groups.get(group_id)
        records = self.stored.get(group_id)
        return None if records is None else _built(group_id, records)

    def all_committed(self) -> list[EpochGroup]:
        ids = dict.fromkeys([*self.groups, *self._in_flight])
        return [group for one in ids if (group := self.committed(one)) is not None]

    def restore(self, turn: Turn, group_id: str) -> None:
        """Build a group from its records, and give its members their full time."""
        group = self.groups[group_id] = _built(group_id, self.stored[group_id])
        for member in group.members.values():
            restart_member_session(turn, group, member)
            is_revoking = member.current.phase is MemberPhase.UNREVOKED
            if is_revoking and not member.uses_classic_protocol:
                key = timer_key(Timer.REBALANCE, group, member.member_id)
                turn.set_deadline(key, member.details.rebalance_timeout_ms)

    def drop(self, turn: Turn, group_id: str) -> None:
        """Drop the state in memory of a group."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            turn.cancel_deadline(assign_key(group))
            for member_id in group.members:
                cancel_timers(turn, group, member_id)

    def remove(self, turn: Turn, group: EpochGroup) -> None:
        """Delete a group."""
        emit_group_removal(turn, group)
        del self.groups[group.group_id]

    def existing(self, group_id: str) -> EpochGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        return group

    # Metadata and time

    def topics_changed(self, names: Iterable[str]) -> None:
        """Topics were created, deleted, or have new partitions. Heartbeats act on it."""
        changed = dict.fromkeys(names)
        for group in self.groups.values():
            group.is_regex_stale = True
            if not group.is_stale:
                group.is_stale = any(name in changed for name in group.subscribed_topics())

    def expire(self, turn: Turn, timer: Timer, group: EpochGroup, member_id: str) -> None:
        """Handle a deadline that has passed."""
        match timer:
            case Timer.ASSIGN:
                assign(turn, group)
                return
            case Timer.SESSION:
                reason = "session expired"
            case Timer.REBALANCE:
                reason = "did not give up partitions in time"
            case Timer.JOIN:
                reason = "did not rejoin in time"
            case Timer.SYNC:
                reason = "did not sync in time"
        if member_id in group.members:
            turn.note("member fenced", group.group_id, f"{member_id}: {reason}")
            remove_members(turn, group, [member_id])

    # Members that use the classic protocol

    def join(
        self,
        turn: Turn,
        waiter: Waiter,
        group: EpochGroup,
        caller: Caller,
        request: JoinGroupRequest,
    ) -> None:
        turn.is_serial = True
        turn.reply(waiter, join_classic(turn, group, caller, request))

    def sync(
        self, turn: Turn, waiter: Waiter, group: EpochGroup, request: SyncGroupRequest
    ) -> None:
        turn.is_serial = True
        turn.reply(waiter, sync_classic(turn, group, request))

    def heartbeat(self, turn: Turn, group: EpochGroup, request: HeartbeatRequest) -> ErrorCode:
        return heartbeat_classic(turn, group, request)

    def leave(
        self, turn: Turn, group: EpochGroup, request: LeaveGroupRequest
    ) -> LeaveGroupResponse:
        """Remove members at their own request, or static ones for an administrator."""
        leaving: dict[str, None] = {}
        results = []
        for identity in request.members:
            code = ErrorCode.NONE
            try:
                leaving[check_leaving(group, identity).member_id] = None
            except KafkaError as error:
                code = error.code
            results.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=code,
                )
            )
        turn.is_serial = True
        remove_members(turn, group, leaving)
        return LeaveGroupResponse(error_code=ErrorCode.NONE, members=tuple(results))


def _built(group_id: str, records: Mapping[tuple[int, str], ConsumerRecord]) -> EpochGroup:
    return EpochGroup.from_records(group_id, (records[key] for key in sorted(records)))
