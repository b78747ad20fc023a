"""Records of groups of the consumer protocol (KIP-848): values, and Kafka's bytes for the log.

| key | record | content |
|---|---|---|
| 3 | ``ConsumerEpochRecord`` | group epoch and hash of the subscribed topics |
| 5 | ``ConsumerMemberRecord`` | client, subscription and timeouts of a member |
| 6 | ``TargetEpochRecord`` | epoch and time of the target assignment |
| 7 | ``TargetRecord`` | partitions that a member must get |
| 8 | ``CurrentRecord`` | partitions that a member has, and its epoch |
| 16 | ``RegexRecord`` | topics that match a regular expression |

Key 4 (partition metadata) is obsolete since Kafka 4.1 and is neither read nor written. A value of
None deletes the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final
from uuid import UUID

from msgspec import Struct, field

from riverrun.coordinator.schema import consumer_group_current_member_assignment_value as current
from riverrun.coordinator.schema import consumer_group_member_metadata_value as metadata
from riverrun.coordinator.schema import consumer_group_target_assignment_member_value as target
from riverrun.coordinator.schema.consumer_group_current_member_assignment_key import (
    ConsumerGroupCurrentMemberAssignmentKey,
)
from riverrun.coordinator.schema.consumer_group_member_metadata_key import (
    ConsumerGroupMemberMetadataKey,
)
from riverrun.coordinator.schema.consumer_group_metadata_key import ConsumerGroupMetadataKey
from riverrun.coordinator.schema.consumer_group_metadata_value import ConsumerGroupMetadataValue
from riverrun.coordinator.schema.consumer_group_regular_expression_key import (
    ConsumerGroupRegularExpressionKey,
)
from riverrun.coordinator.schema.consumer_group_regular_expression_value import (
    ConsumerGroupRegularExpressionValue,
)
from riverrun.coordinator.schema.consumer_group_target_assignment_member_key import (
    ConsumerGroupTargetAssignmentMemberKey,
)
from riverrun.coordinator.schema.consumer_group_target_assignment_metadata_key import (
    ConsumerGroupTargetAssignmentMetadataKey,
)
from riverrun.coordinator.schema.consumer_group_target_assignment_metadata_value import (
    ConsumerGroupTargetAssignmentMetadataValue,
)
from riverrun.wire.stored import UnknownRecord, read_key, read_value, write_key, write_value

EPOCH_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
REGEX_KEY: Final = 16
CONSUMER_KEYS: Final = (EPOCH_KEY, MEMBER_KEY, TARGET_EPOCH_KEY, TARGET_KEY, CURRENT_KEY, REGEX_KEY)

LEFT_STATIC_EPOCH: Final = -2
"""The epoch of a static member that left and is expected back (KIP-345)."""

TopicSlot = tuple[UUID, int]
"""A partition by topic id and index."""
Held = Mapping[TopicSlot, int]
"""Partitions of a member, with the epoch at which each was assigned (KIP-1251)."""


class MemberPhase(IntEnum):
    """How far a member has got with its target assignment."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first."""
    UNRELEASED = 2
    """It waits for partitions that other members still hold."""
    UNKNOWN = 127
    """A later version stored a phase that this version does not know."""


class ClassicSupport(Struct, frozen=True):
    """A member that uses the classic protocol, in a group of the consumer protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberDetails(Struct, frozen=True, kw_only=True):
    """Client, subscription and timeouts of a member, from its requests."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicSupport | None = None


class CurrentAssignment(Struct, frozen=True, kw_only=True):
    """What a member has."""

    epoch: int = 0
    previous_epoch: int = 0
    phase: MemberPhase = MemberPhase.STABLE
    assigned: Held = field(default_factory=dict)
    revoking: Held = field(default_factory=dict)
    """Partitions that it must give up and has not given up yet."""


class GroupEpoch(Struct, frozen=True):
    epoch: int
    metadata_hash: int


class TargetEpoch(Struct, frozen=True):
    epoch: int
    timestamp_ms: int


class ResolvedRegex(Struct, frozen=True):
    """The topics that matched, the version of the metadata and the time."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerEpochRecord(Struct, frozen=True):
    group_id: str
    value: GroupEpoch | None


class ConsumerMemberRecord(Struct, frozen=True):
    group_id: str
    member_id: str
    value: MemberDetails | None


class TargetEpochRecord(Struct, frozen=True):
    group_id: str
    value: TargetEpoch | None


class TargetRecord(Struct, frozen=True):
    group_id: str
    member_id: str
    value: tuple[TopicSlot, ...] | None


class CurrentRecord(Struct, frozen=True):
    group_id: str
    member_id: str
    value: CurrentAssignment | None


class RegexRecord(Struct, frozen=True):
    group_id: str
    regex: str
    value: ResolvedRegex | None


ConsumerRecord = (
    ConsumerEpochRecord
    | ConsumerMemberRecord
    | TargetEpochRecord
    | TargetRecord
    | CurrentRecord
    | RegexRecord
)


def record_key(record: ConsumerRecord) -> tuple[int, str]:
    """The key of a record within its group. Keys sort in the order of replay."""
    match record:
        case ConsumerEpochRecord():
            return (EPOCH_KEY, "")
        case ConsumerMemberRecord():
            return (MEMBER_KEY, record.member_id)
        case TargetEpochRecord():
            return (TARGET_EPOCH_KEY, "")
        case TargetRecord():
            return (TARGET_KEY, record.member_id)
        case CurrentRecord():
            return (CURRENT_KEY, record.member_id)
        case RegexRecord():
            return (REGEX_KEY, record.regex)


def encode_consumer(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """(key, value) as Kafka writes them."""
    group = record.group_id
    match record:
        case ConsumerEpochRecord(_, value):
            key = write_key(ConsumerGroupMetadataKey(group_id=group))
            return key, None if value is None else _epoch_value(value)
        case ConsumerMemberRecord(_, member, details):
            key = write_key(ConsumerGroupMemberMetadataKey(group_id=group, member_id=member))
            return key, None if details is None else _member_value(details)
        case TargetEpochRecord(_, at):
            key = write_key(ConsumerGroupTargetAssignmentMetadataKey(group_id=group))
            return key, None if at is None else _target_epoch_value(at)
        case TargetRecord(_, member, slots):
            key = write_key(
                ConsumerGroupTargetAssignmentMemberKey(group_id=group, member_id=member)
            )
            return key, None if slots is None else _target_value(slots)
        case CurrentRecord(_, member, held):
            key = write_key(
                ConsumerGroupCurrentMemberAssignmentKey(group_id=group, member_id=member)
            )
            return key, None if held is None else _current_value(held)
        case RegexRecord(_, regex, found):
            key = write_key(
                ConsumerGroupRegularExpressionKey(group_id=group, regular_expression=regex)
            )
            return key, None if found is None else _regex_value(found)


def decode_consumer(kind: int, key: bytes, value: bytes | None) -> ConsumerRecord:
    """The record of one of ``CONSUMER_KEYS``."""
    if kind == EPOCH_KEY:
        group = read_key(ConsumerGroupMetadataKey, key).group_id
        return ConsumerEpochRecord(group, None if value is None else _read_epoch(value))
    if kind == MEMBER_KEY:
        member = read_key(ConsumerGroupMemberMetadataKey, key)
        details = None if value is None else _read_member(value)
        return ConsumerMemberRecord(member.group_id, member.member_id, details)
    if kind == TARGET_EPOCH_KEY:
        group = read_key(ConsumerGroupTargetAssignmentMetadataKey, key).group_id
        return TargetEpochRecord(group, None if value is None else _read_target_epoch(value))
    if kind == TARGET_KEY:
        owner = read_key(ConsumerGroupTargetAssignmentMemberKey, key)
        slots = None if value is None else _read_target(value)
        return TargetRecord(owner.group_id, owner.member_id, slots)
    if kind == CURRENT_KEY:
        holder = read_key(ConsumerGroupCurrentMemberAssignmentKey, key)
        held = None if value is None else _read_current(value)
        return CurrentRecord(holder.group_id, holder.member_id, held)
    assert kind == REGEX_KEY, f"key type {kind} is no consumer record"
    regex = read_key(ConsumerGroupRegularExpressionKey, key)
    found = None if value is None else _read_regex(value)
    return RegexRecord(regex.group_id, regex.regular_expression, found)


def by_topic(slots: Iterable[TopicSlot]) -> dict[UUID, list[int]]:
    """Partitions by topic id, ascending."""
    found: dict[UUID, list[int]] = {}
    for topic_id, index in slots:
        found.setdefault(topic_id, []).append(index)
    for indexes in found.values():
        indexes.sort()
    return found


def _epoch_value(value: GroupEpoch) -> bytes:
    return write_value(
        ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash), version=0
    )


def _read_epoch(value: bytes) -> GroupEpoch:
    stored = read_value(ConsumerGroupMetadataValue, value)
    return GroupEpoch(stored.epoch, stored.metadata_hash)


def _target_epoch_value(value: TargetEpoch) -> bytes:
    return write_value(
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp_ms
        ),
        version=0,
    )


def _read_target_epoch(value: bytes) -> TargetEpoch:
    stored = read_value(ConsumerGroupTargetAssignmentMetadataValue, value)
    return TargetEpoch(stored.assignment_epoch, stored.assignment_timestamp)


def _member_value(value: MemberDetails) -> bytes:
    classic = value.classic
    return write_value(
        metadata.ConsumerGroupMemberMetadataValue(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=value.topics,
            subscribed_topic_regex=value.regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.assignor,
            classic_member_metadata=None
            if classic is None
            else metadata.ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=tuple(
                    metadata.ClassicProtocol(name=name, metadata=data)
                    for name, data in classic.protocols
                ),
            ),
        ),
        version=0,
    )


def _read_member(value: bytes) -> MemberDetails:
    stored = read_value(metadata.ConsumerGroupMemberMetadataValue, value)
    classic = stored.classic_member_metadata
    return MemberDetails(
        instance_id=stored.instance_id,
        rack_id=stored.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        topics=tuple(stored.subscribed_topic_names),
        regex=stored.subscribed_topic_regex or None,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        assignor=stored.server_assignor,
        classic=None
        if classic is None
        else ClassicSupport(
            classic.session_timeout_ms,
            tuple((one.name, bytes(one.metadata)) for one in classic.supported_protocols),
        ),
    )


def _target_value(slots: tuple[TopicSlot, ...]) -> bytes:
    topics = tuple(
        target.TopicPartition(topic_id=topic_id, partitions=tuple(indexes))
        for topic_id, indexes in by_topic(slots).items()
    )
    return write_value(
        target.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics), version=0
    )


def _read_target(value: bytes) -> tuple[TopicSlot, ...]:
    stored = read_value(target.ConsumerGroupTargetAssignmentMemberValue, value)
    return tuple(
        (topic.topic_id, index)
        for topic in stored.topic_partitions
        if topic.topic_id is not None
        for index in topic.partitions
    )


def _current_value(value: CurrentAssignment) -> bytes:
    return write_value(
        current.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=value.epoch,
            previous_member_epoch=value.previous_epoch,
            state=value.phase,
            assigned_partitions=_with_epochs(value.assigned),
            partitions_pending_revocation=_with_epochs(value.revoking),
        ),
        version=0,
    )


def _with_epochs(held: Held) -> tuple[current.TopicPartitions, ...]:
    return tuple(
        current.TopicPartitions(
            topic_id=topic_id,
            partitions=tuple(indexes),
            assignment_epochs=tuple(held[topic_id, index] for index in indexes),
        )
        for topic_id, indexes in by_topic(held).items()
    )


def _read_current(value: bytes) -> CurrentAssignment:
    stored = read_value(current.ConsumerGroupCurrentMemberAssignmentValue, value)
    known = stored.state in (MemberPhase.STABLE, MemberPhase.UNREVOKED, MemberPhase.UNRELEASED)
    epoch = stored.member_epoch
    return CurrentAssignment(
        epoch=epoch,
        previous_epoch=stored.previous_member_epoch,
        phase=MemberPhase(stored.state) if known else MemberPhase.UNKNOWN,
        assigned=_read_held(stored.assigned_partitions, epoch),
        revoking=_read_held(stored.partitions_pending_revocation, epoch),
    )


def _read_held(topics: Iterable[current.TopicPartitions], epoch: int) -> dict[TopicSlot, int]:
    """Versions before 4.3 stored no epochs; the member's own epoch is the latest possible."""
    held: dict[TopicSlot, int] = {}
    for topic in topics:
        if topic.topic_id is None:
            raise UnknownRecord("an assigned topic has no id")
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (epoch,) * len(topic.partitions)
        for index, assigned_at in zip(topic.partitions, epochs, strict=True):
            held[topic.topic_id, index] = assigned_at
    return held


def _regex_value(value: ResolvedRegex) -> bytes:
    return write_value(
        ConsumerGroupRegularExpressionValue(
            topics=value.topics, version=value.version, timestamp=value.timestamp_ms
        ),
        version=0,
    )


def _read_regex(value: bytes) -> ResolvedRegex:
    stored = read_value(ConsumerGroupRegularExpressionValue, value)
    return ResolvedRegex(tuple(stored.topics), stored.version, stored.timestamp)
