"""All groups of one partition of ``__consumer_offsets``: requests in, records and replies out.

A shard has two kinds of state. Durable state (``stored`` and ``offsets``) changes only in
``replay``, when a record is committed. In-memory state (``groups``: phases, pending requests,
deadlines) is built from it when the partition is loaded, and changes with requests and time. A
refused write therefore leaves the durable state alone, and the in-memory state is restored from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.group import ClassicGroup, GroupMember, GroupState
from riverrun.coordinator.join import check_request, join
from riverrun.coordinator.liveness import connection_lost, heartbeat, leave, session_expired
from riverrun.coordinator.log import (
    InTransaction,
    ProducerTransaction,
    TransactionEnd,
)
from riverrun.coordinator.offsets import Offsets, check_commit, check_transactional_commit
from riverrun.coordinator.rebalance import (
    assignment_refused,
    assignment_stored,
    join_error,
    join_key,
    join_timed_out,
    prepare,
    restart_session,
    session_key,
    sync_error,
    sync_key,
    sync_timed_out,
)
from riverrun.coordinator.records import (
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    StoredGroup,
)
from riverrun.coordinator.shard_kind import Waiter
from riverrun.coordinator.sync import sync
from riverrun.coordinator.turn import Caller, Timer, TimerKey, Turn
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.wire.messages.delete_groups_response import DeletableGroupResult
from riverrun.wire.messages.describe_groups_response import DescribedGroup, DescribedGroupMember
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse, MemberResponse
from riverrun.wire.messages.list_groups_response import ListedGroup
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup

if TYPE_CHECKING:
    from riverrun.coordinator.settings import GroupSettings
    from riverrun.ports.randomness import Randomness
    from riverrun.storage.markers import NewMarker
    from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
    from riverrun.wire.messages.join_group_request import JoinGroupRequest
    from riverrun.wire.messages.leave_group_request import LeaveGroupRequest
    from riverrun.wire.messages.offset_commit_request import OffsetCommitRequest
    from riverrun.wire.messages.offset_delete_request import OffsetDeleteRequest
    from riverrun.wire.messages.offset_fetch_request import OffsetFetchRequestTopics
    from riverrun.wire.messages.sync_group_request import SyncGroupRequest
    from riverrun.wire.messages.txn_offset_commit_request import TxnOffsetCommitRequest

EXPIRED_PER_TURN_MAX = 500
"""Deadlines handled in one turn; the rest waits for the next one."""

GROUP_NOT_FOUND_SINCE_COMMIT = 9
GROUP_NOT_FOUND_SINCE_DESCRIBE = 6


class GroupShard:
    """The groups and committed offsets of one partition."""

    def __init__(self, settings: GroupSettings, randomness: Randomness) -> None:
        self.settings = settings
        self.stored: dict[str, StoredGroup] = {}
        self.offsets = Offsets()
        self.groups: dict[str, ClassicGroup] = {}
        self.deadlines: Deadlines[TimerKey] = Deadlines()
        self._randomness = randomness
        self._readers: dict[Waiter, None] = {}
        """Requests that wait for the end of a transaction."""

    def turn(self, now: float, now_ms: int) -> Turn:
        return Turn(
            now=now,
            now_ms=now_ms,
            settings=self.settings,
            randomness=self._randomness,
            deadlines=self.deadlines,
        )

    # The log

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a committed record: the only place where durable state changes."""
        match record:
            case OffsetRecord():
                self.offsets.replay(record)
            case InTransaction(transaction, OffsetRecord() as offset):
                self.offsets.pending.add(transaction.producer_id, offset)
            case InTransaction(_, inner):
                self.replay(inner)  # only offsets are part of transactions, as in Kafka
            case TransactionEnd(marker):
                is_commit = marker.content.is_commit
                self.offsets.end_transaction(marker.producer_id, is_commit=is_commit)
            case GroupRecord(group_id, None):
                self.stored.pop(group_id, None)
            case GroupRecord(group_id, StoredGroup() as value):
                self.stored[group_id] = value

    def known_ids(self) -> list[str]:
        """All groups with durable state."""
        offsets = self.offsets
        return list(dict.fromkeys([*self.stored, *offsets.by_group, *offsets.pending.groups]))

    def _is_known(self, group_id: str) -> bool:
        offsets = self.offsets
        return (
            group_id in self.stored
            or group_id in offsets.by_group
            or offsets.pending.has_group(group_id)
        )

    def restore(self, turn: Turn, ids: Iterable[str]) -> None:
        """Build the in-memory state of groups from the log, and start the sessions of members."""
        for group_id in ids:
            self._restore(turn, group_id)

    def counts(self) -> dict[str, int]:
        return {"groups": len(self.known_ids()), "offsets": self.offsets.count}

    def sent(self, records: Iterable[CoordinatorRecord]) -> None:
        """Note that the records of a turn are in flight."""
        for record in records:
            offset = _offset_of(record)
            if offset is not None:
                self.offsets.sent(offset)

    def committed(self, turn: Turn, records: Iterable[CoordinatorRecord]) -> None:
        """Apply committed records, and continue the rebalances that waited for them."""
        for record in records:
            self.replay(record)
            offset = _offset_of(record)
            if offset is not None:
                self.offsets.settled(offset)
            elif isinstance(record, TransactionEnd):
                self._wake_readers(turn)
            elif isinstance(record, GroupRecord):
                group = self.groups.get(record.group_id)
                if group is not None and record.value is not None:
                    assignment_stored(turn, group, record.value)

    def refused(self, turn: Turn, records: Iterable[CoordinatorRecord], code: ErrorCode) -> None:
        """Take back the in-memory effects of records that were not appended."""
        for record in records:
            offset = _offset_of(record)
            if offset is not None:
                self.offsets.settled(offset)
            if not isinstance(record, GroupRecord):
                continue
            group = self.groups.get(record.group_id)
            is_known = self._is_known(record.group_id)
            if group is None:
                if is_known:
                    self._restore(turn, record.group_id)
            elif group.state is GroupState.COMPLETING:
                assignment_refused(turn, group, code)
            elif group.state is GroupState.STABLE:
                self._drop(turn, group, code)
                self._restore(turn, record.group_id)
            elif not is_known and not group.members:
                self._drop(turn, group, code)

    def unload(self, turn: Turn) -> None:
        """Fail all pending requests, because another node coordinates these groups now."""
        for group in self.groups.values():
            if group.members:
                _fail_waiters(turn, group, ErrorCode.NOT_COORDINATOR)
        self._wake_readers(turn)

    def _wake_readers(self, turn: Turn) -> None:
        """A transaction has ended: pending offsets may have become stable."""
        for waiter in self._readers:
            turn.reply(waiter, None)
        self._readers.clear()

    def _restore(self, turn: Turn, group_id: str) -> None:
        stored = self.stored.get(group_id)
        if stored is None:
            # Only offsets: a simple group, whose clients commit without being members.
            self.groups[group_id] = ClassicGroup(group_id, turn.now_ms)
            return
        group = self.groups[group_id] = ClassicGroup.from_stored(group_id, stored)
        for member in group.members.values():
            restart_session(turn, group, member)
        if len(group.members) > self.settings.size_max:
            prepare(turn, group, "the group exceeds its maximum size")

    def _drop(self, turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
        """Drop the in-memory state of a group and fail its pending requests."""
        _fail_waiters(turn, group, code)
        for member_id in (*group.members, *group.pending_joins):
            turn.cancel_deadline(session_key(group, member_id))
        turn.cancel_deadline(join_key(group))
        turn.cancel_deadline(sync_key(group))
        group.become(GroupState.DEAD, turn.now_ms)
        del self.groups[group.group_id]

    # Time

    def expire(self, turn: Turn) -> None:
        """Handle the deadlines that have passed."""
        for _ in range(EXPIRED_PER_TURN_MAX):
            key = self.deadlines.pop_due(turn.now)
            if key is None:
                return
            timer, group_id, member_id = key
            group = self.groups.get(group_id)
            if group is None:
                continue
            match timer:
                case Timer.SESSION:
                    session_expired(turn, group, member_id)
                case Timer.JOIN:
                    join_timed_out(turn, group)
                case Timer.SYNC:
                    sync_timed_out(turn, group)

    def expire_offsets(self, turn: Turn, group_ids: Iterable[str]) -> None:
        """Delete the expired offsets of some groups, and empty groups without offsets."""
        for group_id in group_ids:
            group = self.groups.get(group_id)
            if group is None:
                continue
            has_no_offsets = self.offsets.expire(turn, group)
            if has_no_offsets and group.state is GroupState.EMPTY and not group.pending_joins:
                self._remove(turn, group)

    def topics_deleted(self, turn: Turn, names: Iterable[str]) -> None:
        self.offsets.delete_topics(turn, dict.fromkeys(names))

    def connection_lost(self, turn: Turn, subject: str, waiter: Waiter) -> None:
        self._readers.pop(waiter, None)
        group = self.groups.get(subject)
        if group is not None:
            connection_lost(turn, group, waiter)

    # Membership

    def join(self, turn: Turn, waiter: Waiter, caller: Caller, request: JoinGroupRequest) -> None:
        check_request(request, caller)
        group = self.groups.get(request.group_id)
        is_new = group is None
        if group is None:
            if request.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, turn.now_ms)
            # Recorded before the request changes the group: durably it exists and is empty.
            turn.records.append(GroupRecord(request.group_id, group.stored({})))
        join(turn, group, waiter, caller, request)
        assert not is_new or turn.records, f"new group {request.group_id} is not written"

    def sync(self, turn: Turn, waiter: Waiter, request: SyncGroupRequest) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        sync(turn, group, waiter, request)

    def heartbeat(self, turn: Turn, request: HeartbeatRequest) -> HeartbeatResponse:
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return HeartbeatResponse(error_code=heartbeat(turn, group, request))

    def leave(self, turn: Turn, waiter: Waiter, request: LeaveGroupRequest) -> None:
        group = self.groups.get(request.group_id)
        if group is not None:
            turn.reply(waiter, leave(turn, group, request))
            return
        unknown = tuple(
            MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode.UNKNOWN_MEMBER_ID,
            )
            for member in request.members
        )
        turn.reply(waiter, LeaveGroupResponse(error_code=ErrorCode.NONE, members=unknown))

    # Offsets

    def commit(
        self, turn: Turn, waiter: Waiter, caller: Caller, request: OffsetCommitRequest
    ) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id_or_member_epoch >= 0:
                is_late = caller.api_version >= GROUP_NOT_FOUND_SINCE_COMMIT
                code = ErrorCode.GROUP_ID_NOT_FOUND if is_late else ErrorCode.ILLEGAL_GENERATION
                raise KafkaError(code)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, turn.now_ms)
        check_commit(group, request)
        member = group.members.get(request.member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            restart_session(turn, group, member)
        turn.reply(waiter, self.offsets.commit(turn, request))

    def commit_in_transaction(
        self,
        turn: Turn,
        waiter: Waiter,
        request: TxnOffsetCommitRequest,
        transaction: ProducerTransaction,
    ) -> None:
        group = self.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            group = self.groups[request.group_id] = ClassicGroup(request.group_id, turn.now_ms)
        check_transactional_commit(group, request)
        turn.reply(waiter, self.offsets.commit_in_transaction(turn, request, transaction))

    def end_transaction(self, turn: Turn, waiter: Waiter, marker: NewMarker) -> None:
        """Append a marker. The reply follows when its effect is visible (KAFKA-17507)."""
        turn.records.append(TransactionEnd(marker))
        turn.reply(waiter, None)

    def fetch(
        self,
        group_id: str,
        topics: Sequence[OffsetFetchRequestTopics] | None,
        *,
        is_stable_only: bool = False,
    ) -> OffsetFetchResponseGroup:
        found = self.offsets.fetch(group_id, topics, is_stable_only=is_stable_only)
        return OffsetFetchResponseGroup(group_id=group_id, topics=found)

    def await_transaction(self, turn: Turn, waiter: Waiter) -> None:
        """Reply when the next transaction has ended."""
        self._readers[waiter] = None

    def delete_offsets(self, turn: Turn, waiter: Waiter, request: OffsetDeleteRequest) -> None:
        group = self._existing(request.group_id)
        if group.state is not GroupState.EMPTY and not group.is_consumer:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        turn.reply(waiter, self.offsets.delete(turn, group, request))

    # Administration

    def describe(self, group_id: str, api_version: int) -> DescribedGroup:
        group = self.groups.get(group_id)
        if group is None:
            has_code = api_version >= GROUP_NOT_FOUND_SINCE_DESCRIBE
            return described_error(
                group_id,
                ErrorCode.GROUP_ID_NOT_FOUND if has_code else ErrorCode.NONE,
                f"Group {group_id} not found." if has_code else None,
                state=GroupState.DEAD.value,
            )
        is_stable = group.state is GroupState.STABLE
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if is_stable else "",
            members=tuple(_described(group, member) for member in group.members.values()),
        )

    def listed(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Groups in the given states and of the given types, in lower case; empty means all."""
        return [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=group.type.value,
            )
            for group in self.groups.values()
            if (not states or group.state.value.lower() in states)
            and (not types or group.type.value in types)
        ]

    def delete_group(self, turn: Turn, waiter: Waiter, group_id: str) -> None:
        group = self._existing(group_id)
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        self.offsets.delete_all(turn, group_id)
        self._remove(turn, group)
        turn.reply(waiter, DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE))

    def _existing(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        return group

    def _remove(self, turn: Turn, group: ClassicGroup) -> None:
        assert not group.members, f"{group.group_id} has members"
        turn.records.append(GroupRecord(group.group_id, None))
        self._drop(turn, group, ErrorCode.UNKNOWN_MEMBER_ID)
        turn.note("group removed", group.group_id)


def _offset_of(record: CoordinatorRecord) -> OffsetRecord | None:
    """The offset in a record, in a transaction or not."""
    if isinstance(record, InTransaction):
        record = record.record
    return record if isinstance(record, OffsetRecord) else None


def described_error(
    group_id: str, code: ErrorCode, message: str | None = None, *, state: str = ""
) -> DescribedGroup:
    return DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _fail_waiters(turn: Turn, group: ClassicGroup, code: ErrorCode) -> None:
    for member in group.members.values():
        waiter = group.await_join(member, None)
        if waiter is not None:
            turn.reply(waiter, join_error(code, member.member_id))
        if member.sync_waiter is not None:
            turn.reply(member.sync_waiter, sync_error(code))
            member.sync_waiter = None


def _described(group: ClassicGroup, member: GroupMember) -> DescribedGroupMember:
    is_stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment,
    )
