"""Conversion between classic groups and groups of the consumer protocol, while members are live.

The first heartbeat of the consumer protocol upgrades a classic group, and its classic members
continue in it. When the last member of the consumer protocol has left, the group is downgraded and
rebalances. ``group.consumer.migration.policy`` allows both, one or neither. Empty groups are always
converted. Committed offsets belong to the group id and stay.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from riverrun.client.consumer_protocol import (
    NotConsumerProtocol,
    read_assignment,
    read_assignment_user_data,
    read_member_subscription,
    write_assignment,
)
from riverrun.coordinator.consumer.catalog import metadata_hash
from riverrun.coordinator.consumer.classic_members import names_of, slots_of
from riverrun.coordinator.consumer.emission import (
    emit,
    emit_group_removal,
    restart_member_session,
)
from riverrun.coordinator.consumer.records import (
    ClassicSupport,
    ConsumerEpochRecord,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpoch,
    MemberDetails,
    TargetEpoch,
    TargetEpochRecord,
    TargetRecord,
)
from riverrun.coordinator.consumer.state import EpochGroup
from riverrun.coordinator.group import CONSUMER, ClassicGroup, GroupMember, GroupState
from riverrun.coordinator.rebalance import (
    fail_waiters,
    join_key,
    prepare,
    restart_session,
    session_key,
    sync_key,
)
from riverrun.coordinator.records import GroupRecord
from riverrun.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from riverrun.coordinator.turn import Turn


class MigrationPolicy(Enum):
    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


def policy_of(turn: Turn) -> MigrationPolicy:
    return MigrationPolicy(turn.settings.consumer_migration_policy.lower())


def check_upgrade(turn: Turn, classic: ClassicGroup) -> None:
    """Raises GROUP_ID_NOT_FOUND if a live classic group cannot be converted."""
    if not classic.members:
        return
    reason = None
    if not policy_of(turn).allows_upgrade:
        reason = "online upgrade is disabled"
    elif classic.protocol_type != CONSUMER:
        reason = "the group does not use the consumer embedded protocol"
    elif len(classic.members) >= turn.settings.consumer_size_max:
        reason = "the group size exceeds the consumer group maximum size"
    else:
        try:
            for member in classic.members.values():
                read_member_subscription(_subscription(classic, member))
                if read_assignment_user_data(member.assignment):
                    reason = "an unsupported custom assignor is in use"
        except NotConsumerProtocol:
            reason = "the embedded consumer protocol is malformed"
    if reason is not None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
        )


def _subscription(classic: ClassicGroup, member: GroupMember) -> bytes:
    """The metadata of the chosen protocol, or of the first before there is one."""
    return member.metadata(classic.protocol_name) or member.protocols[0][1]


def upgrade(turn: Turn, classic: ClassicGroup) -> EpochGroup:
    """Convert a classic group that passed ``check_upgrade``."""
    _dismiss(turn, classic)
    turn.records.append(GroupRecord(classic.group_id, None))
    group = EpochGroup(classic.group_id)
    if not classic.members:
        return group
    epoch = classic.generation
    for member in classic.members.values():
        _upgrade_member(turn, group, classic, member, epoch)
    hashed = metadata_hash(turn.view, group.subscribed_topics())
    emit(turn, group, ConsumerEpochRecord(group.group_id, GroupEpoch(epoch, hashed)))
    emit(turn, group, TargetEpochRecord(group.group_id, TargetEpoch(epoch, 0)))
    turn.note("group upgraded", group.group_id, f"epoch {epoch}, members {len(group.members)}")
    return group


def _upgrade_member(
    turn: Turn, group: EpochGroup, classic: ClassicGroup, member: GroupMember, epoch: int
) -> None:
    subscription = read_member_subscription(_subscription(classic, member))
    details = MemberDetails(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(dict.fromkeys(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicSupport(member.session_timeout_ms, member.protocols),
    )
    # Assignors of clients may assign a partition twice. Here the first member keeps it.
    slots = [
        slot
        for slot in slots_of(turn.view, read_assignment(member.assignment).items())
        if slot not in group.owners
    ]
    current = CurrentAssignment(
        epoch=epoch, previous_epoch=epoch, assigned=dict.fromkeys(slots, epoch)
    )
    group_id, member_id = group.group_id, member.member_id
    emit(turn, group, ConsumerMemberRecord(group_id, member_id, details))
    emit(turn, group, TargetRecord(group_id, member_id, tuple(sorted(slots))))
    emit(turn, group, CurrentRecord(group_id, member_id, current))
    restart_member_session(turn, group, group.members[member_id])


def _dismiss(turn: Turn, classic: ClassicGroup) -> None:
    """End the rebalance of a classic group: its members must join the new one."""
    turn.cancel_deadline(join_key(classic))
    turn.cancel_deadline(sync_key(classic))
    for member_id in (*classic.members, *classic.pending_joins):
        turn.cancel_deadline(session_key(classic, member_id))
    fail_waiters(turn, classic, ErrorCode.REBALANCE_IN_PROGRESS)


def can_downgrade(turn: Turn, group: EpochGroup) -> bool:
    """Whether only classic members are left, and the group may be converted."""
    members = group.members
    return (
        bool(members)
        and len(group.classic_members()) == len(members)
        and policy_of(turn).allows_downgrade
        and len(members) <= turn.settings.size_max
    )


def downgrade(turn: Turn, group: EpochGroup) -> ClassicGroup:
    """Convert a group into a classic one, which rebalances at once."""
    classic = ClassicGroup(group.group_id, turn.now_ms)
    classic.state = GroupState.STABLE
    classic.protocol_type = CONSUMER
    # Members that have reached the target have this epoch. With another one they would be fenced.
    classic.generation = group.target_epoch
    for member in group.members.values():
        support = member.details.classic
        assert support is not None, f"{member.member_id} does not use the classic protocol"
        classic.add(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.details.instance_id,
                client_id=member.details.client_id,
                client_host=member.details.client_host,
                rebalance_timeout_ms=member.details.rebalance_timeout_ms,
                session_timeout_ms=support.session_timeout_ms,
                protocols=support.protocols,
                assignment=write_assignment(names_of(turn.view, member.current.assigned)),
            )
        )
    classic.protocol_name = classic.select_protocol()
    classic.refresh_topics()
    emit_group_removal(turn, group)
    turn.records.append(GroupRecord(group.group_id, classic.stored(classic.assignments())))
    for joined in classic.members.values():
        restart_session(turn, classic, joined)
    turn.note("group downgraded", group.group_id, f"generation {classic.generation}")
    prepare(turn, classic, "the last member of the consumer protocol left")
    return classic
