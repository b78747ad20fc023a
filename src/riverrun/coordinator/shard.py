"""All groups of one partition of ``__consumer_offsets``: requests in, records and replies out.

A shard has two kinds of state. Durable state (``stored`` and ``offsets``) changes only in
``replay``, when a record is committed. In-memory state (``groups``: phases, pending requests,
deadlines) is built from it when the partition is loaded, and changes with requests and time. A
refused write therefore leaves the durable state alone, and the in-memory state is restored from it.

``groups`` holds the classic groups, ``consumers`` those of the consumer protocol. A group id is in
one of them at most, and moves to the other when the group is converted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from riverrun.coordinator.consumer.catalog import EmptyCatalog, GroupCatalog
from riverrun.coordinator.consumer.groups import ConsumerGroups
from riverrun.coordinator.consumer.heartbeat import leave_consumer, stay
from riverrun.coordinator.consumer.migration import (
    can_downgrade,
    check_upgrade,
    downgrade,
    upgrade,
)
from riverrun.coordinator.consumer.records import ConsumerRecord
from riverrun.coordinator.consumer.regexes import Visible, compile_regex
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.deadlines import Deadlines
from riverrun.coordinator.group import ClassicGroup, GroupState
from riverrun.coordinator.groups.description import (
    consumer_error,
    described_classic,
    described_consumer,
    described_missing,
    listed,
)
from riverrun.coordinator.groups.offset_expiry import OffsetExpiry
from riverrun.coordinator.groups.offset_requests import NO_MEMBER, OffsetRequests
from riverrun.coordinator.join import check_request, join
from riverrun.coordinator.liveness import (
    all_unknown,
    connection_lost,
    heartbeat,
    leave,
    session_expired,
)
from riverrun.coordinator.log import (
    InTransaction,
    ProducerTransaction,
    TransactionEnd,
)
from riverrun.coordinator.offsets import Offsets, offset_of
from riverrun.coordinator.rebalance import (
    assignment_refused,
    assignment_stored,
    fail_waiters,
    join_key,
    join_timed_out,
    prepare,
    restart_session,
    session_key,
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
from riverrun.wire.messages.describe_groups_response import DescribedGroup
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse
from riverrun.wire.messages.list_groups_response import ListedGroup
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponseGroup

if TYPE_CHECKING:
    from riverrun.coordinator.settings import GroupSettings
    from riverrun.ports.randomness import Randomness
    from riverrun.storage.markers import NewMarker
    from riverrun.wire.messages import consumer_group_describe_response
    from riverrun.wire.messages.consumer_group_heartbeat_request import (
        ConsumerGroupHeartbeatRequest,
    )
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


class GroupShard:
    """The groups and committed offsets of one partition."""

    def __init__(
        self, settings: GroupSettings, randomness: Randomness, view: GroupCatalog | None = None
    ) -> None:
        self.settings = settings
        self.view: GroupCatalog = EmptyCatalog() if view is None else view
        self.stored: dict[str, StoredGroup] = {}
        self.offsets = Offsets()
        self.groups: dict[str, ClassicGroup] = {}
        self.consumers = ConsumerGroups()
        self._requests = OffsetRequests(self.groups, self.consumers, self.offsets, self.view)
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
            view=self.view,
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
            case GroupRecord():
                assert record.value is not None, "matched above"
                self.stored[record.group_id] = record.value
            case _:
                self.consumers.replay(record)

    def known_ids(self) -> list[str]:
        """All groups with durable state."""
        offsets, consumers = self.offsets, self.consumers.stored
        known = [*self.stored, *consumers, *offsets.by_group, *offsets.pending.groups]
        return list(dict.fromkeys(known))

    def group_ids(self) -> list[str]:
        """All groups."""
        return [*self.groups, *self.consumers.groups]

    def _is_known(self, group_id: str) -> bool:
        offsets = self.offsets
        return (
            group_id in self.stored
            or group_id in self.consumers.stored
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
            offset = offset_of(record)
            if offset is not None:
                self.offsets.sent(offset)
            elif isinstance(record, ConsumerRecord):
                self.consumers.sent(record)

    def committed(self, turn: Turn, records: Iterable[CoordinatorRecord]) -> None:
        """Apply committed records, and continue the rebalances that waited for them."""
        for record in records:
            self.replay(record)
            self._settled(record)
            if isinstance(record, TransactionEnd):
                self._wake_readers(turn)
            elif isinstance(record, GroupRecord):
                group = self.groups.get(record.group_id)
                if group is not None and record.value is not None:
                    assignment_stored(turn, group, record.value)

    def _settled(self, record: CoordinatorRecord) -> None:
        offset = offset_of(record)
        if offset is not None:
            self.offsets.settled(offset)
        elif isinstance(record, ConsumerRecord):
            self.consumers.settled(record)

    def refused(self, turn: Turn, records: Iterable[CoordinatorRecord], code: ErrorCode) -> None:
        """Take back the in-memory effects of records that were not appended."""
        records = list(records)
        rebuilt = dict.fromkeys(one.group_id for one in records if isinstance(one, ConsumerRecord))
        for group_id in rebuilt:
            self._rebuild(turn, group_id, code)
        for record in records:
            self._settled(record)
            if not isinstance(record, GroupRecord) or record.group_id in rebuilt:
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

    def _rebuild(self, turn: Turn, group_id: str, code: ErrorCode) -> None:
        """Build a group from the log again, whichever protocol it uses there."""
        self.consumers.drop(turn, group_id)
        classic = self.groups.get(group_id)
        if classic is not None:
            self._drop(turn, classic, code)
        if self._is_known(group_id):
            self._restore(turn, group_id)

    def unload(self, turn: Turn) -> None:
        """Fail all pending requests, because another node coordinates these groups now."""
        for group in self.groups.values():
            if group.members:
                fail_waiters(turn, group, ErrorCode.NOT_COORDINATOR)
        self._wake_readers(turn)

    def _wake_readers(self, turn: Turn) -> None:
        """A transaction has ended: pending offsets may have become stable."""
        for waiter in self._readers:
            turn.reply(waiter, None)
        self._readers.clear()

    def _restore(self, turn: Turn, group_id: str) -> None:
        stored = self.stored.get(group_id)
        if group_id in self.consumers.stored:
            self.consumers.restore(turn, group_id)
            return
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
        fail_waiters(turn, group, code)
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
            consumers = self.consumers.groups.get(group_id)
            if consumers is not None:
                self.consumers.expire(turn, timer, consumers, member_id)
                self._settle_type(turn, consumers)
                if timer is Timer.ASSIGN:
                    return  # A turn has time for one slice, and a batch has room for its records.
                continue
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
                case Timer.REBALANCE | Timer.ASSIGN:
                    pass  # the group was converted

    def expire_offsets(self, turn: Turn, group_ids: Iterable[str]) -> None:
        """Delete the expired offsets of some groups, and empty groups without offsets."""
        for group_id in group_ids:
            consumers = self.consumers.groups.get(group_id)
            group = self.groups.get(group_id)
            if consumers is not None:
                rules = OffsetExpiry.of_consumers(consumers)
                if self.offsets.expire(turn, rules) and consumers.is_empty:
                    self.consumers.remove(turn, consumers)
            elif group is not None:
                has_no_offsets = self.offsets.expire(turn, OffsetExpiry.of_classic(group))
                if has_no_offsets and group.state is GroupState.EMPTY and not group.pending_joins:
                    self._remove(turn, group)

    def topics_deleted(self, turn: Turn, names: Iterable[str]) -> None:
        self.offsets.delete_topics(turn, dict.fromkeys(names))

    def topics_changed(self, names: Iterable[str]) -> None:
        self.consumers.topics_changed(names)

    def connection_lost(self, turn: Turn, subject: str, waiter: Waiter) -> None:
        self._readers.pop(waiter, None)
        group = self.groups.get(subject)
        if group is not None:
            connection_lost(turn, group, waiter)

    # Membership

    def consumer_heartbeat(
        self,
        turn: Turn,
        waiter: Waiter,
        caller: Caller,
        request: ConsumerGroupHeartbeatRequest,
        visible: Visible,
    ) -> None:
        """A member of the consumer protocol joins, stays or leaves."""
        turn.is_serial = True
        group_id = request.group_id
        if request.member_epoch < 0:
            group = self.consumers.existing(group_id)
            turn.reply(waiter, leave_consumer(turn, group, caller, request))
            self._settle_type(turn, group)
            return
        if request.subscribed_topic_regex:
            compile_regex(request.subscribed_topic_regex)
        if request.member_epoch > 0:
            group = self.consumers.existing(group_id)
        elif (classic := self.groups.get(group_id)) is not None:
            check_upgrade(turn, classic)
            group = upgrade(turn, classic)
            del self.groups[group_id]
        else:
            group = self.consumers.groups.get(group_id) or EpochGroup(group_id)
        turn.reply(waiter, stay(turn, group, caller, request, visible))
        self.consumers.groups[group_id] = group

    def _settle_type(self, turn: Turn, group: EpochGroup) -> None:
        """Convert a group whose last member of the consumer protocol has left."""
        if can_downgrade(turn, group):
            del self.consumers.groups[group.group_id]
            self.groups[group.group_id] = downgrade(turn, group)

    def join(self, turn: Turn, waiter: Waiter, caller: Caller, request: JoinGroupRequest) -> None:
        check_request(request, caller)
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None and consumers.members:
            self.consumers.join(turn, waiter, consumers, caller, request)
            self._settle_type(turn, consumers)
            return
        if consumers is not None and not request.member_id:
            self.consumers.remove(turn, consumers)
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
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            self.consumers.sync(turn, waiter, consumers, request)
            return
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        sync(turn, group, waiter, request)

    def heartbeat(self, turn: Turn, request: HeartbeatRequest) -> HeartbeatResponse:
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            return HeartbeatResponse(error_code=self.consumers.heartbeat(turn, consumers, request))
        group = self.groups.get(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return HeartbeatResponse(error_code=heartbeat(turn, group, request))

    def leave(self, turn: Turn, waiter: Waiter, request: LeaveGroupRequest) -> None:
        consumers = self.consumers.groups.get(request.group_id)
        if consumers is not None:
            turn.reply(waiter, self.consumers.leave(turn, consumers, request))
            self._settle_type(turn, consumers)
            return
        group = self.groups.get(request.group_id)
        reply = all_unknown(request) if group is None else leave(turn, group, request)
        turn.reply(waiter, reply)

    # Offsets

    def commit(
        self, turn: Turn, waiter: Waiter, caller: Caller, request: OffsetCommitRequest
    ) -> None:
        turn.reply(waiter, self._requests.commit(turn, caller, request))

    def commit_in_transaction(
        self,
        turn: Turn,
        waiter: Waiter,
        request: TxnOffsetCommitRequest,
        transaction: ProducerTransaction,
        connection: int | None = None,
    ) -> None:
        reply = self._requests.commit_in_transaction(turn, request, transaction, connection)
        turn.reply(waiter, reply)

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
        member: tuple[str | None, int] = NO_MEMBER,
    ) -> OffsetFetchResponseGroup:
        """``member`` is the member id and epoch of the request."""
        return self._requests.fetch(group_id, topics, is_stable_only=is_stable_only, member=member)

    def await_transaction(self, turn: Turn, waiter: Waiter) -> None:
        """Reply when the next transaction has ended."""
        self._readers[waiter] = None

    def delete_offsets(self, turn: Turn, waiter: Waiter, request: OffsetDeleteRequest) -> None:
        turn.reply(waiter, self._requests.delete(turn, request))

    # Administration

    def describe(self, group_id: str, api_version: int) -> DescribedGroup:
        group = self.groups.get(group_id)
        if group is None:
            is_other_type = group_id in self.consumers.groups
            return described_missing(group_id, api_version, is_other_type=is_other_type)
        return described_classic(group)

    def describe_consumers(self, group_id: str) -> consumer_group_describe_response.DescribedGroup:
        group = self.consumers.committed(group_id)
        if group is None:
            reason = "is not a consumer group" if group_id in self.groups else "not found"
            message = f"Group {group_id} {reason}."
            return consumer_error(group_id, ErrorCode.GROUP_ID_NOT_FOUND, message)
        return described_consumer(group, self.view, self.settings.consumer_assignors)

    def listed(self, states: frozenset[str], types: frozenset[str]) -> list[ListedGroup]:
        """Groups in the given states and of the given types, in lower case; empty means all."""
        return listed(self.groups.values(), self.consumers.all_committed(), states, types)

    def delete_group(self, turn: Turn, waiter: Waiter, group_id: str) -> None:
        consumers, group = self.consumers.groups.get(group_id), self.groups.get(group_id)
        if consumers is None and group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        is_live = consumers is not None and not consumers.is_empty
        if is_live or (group is not None and group.state is not GroupState.EMPTY):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        self.offsets.delete_all(turn, group_id)
        if consumers is not None:
            self.consumers.remove(turn, consumers)
        if group is not None:
            self._remove(turn, group)
        turn.reply(waiter, DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE))

    def _remove(self, turn: Turn, group: ClassicGroup) -> None:
        assert not group.members, f"{group.group_id} has members"
        turn.records.append(GroupRecord(group.group_id, None))
        self._drop(turn, group, ErrorCode.UNKNOWN_MEMBER_ID)
        turn.note("group removed", group.group_id)
