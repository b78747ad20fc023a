"""Groups as ListGroups, DescribeGroups and ConsumerGroupDescribe report them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from riverrun.coordinator.consumer.catalog import GroupCatalog
from riverrun.coordinator.consumer.classic_members import names_of
from riverrun.coordinator.consumer.records import TopicSlot
from riverrun.coordinator.consumer.state import EpochGroup, EpochMember
from riverrun.coordinator.group import (
    CONSUMER,
    ClassicGroup,
    GroupMember,
    GroupState,
    GroupType,
)
from riverrun.model.errors import ErrorCode
from riverrun.wire.messages import consumer_group_describe_response as consumer
from riverrun.wire.messages.describe_groups_response import DescribedGroup, DescribedGroupMember
from riverrun.wire.messages.list_groups_response import ListedGroup

GROUP_NOT_FOUND_SINCE_DESCRIBE: Final = 6
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


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


def described_missing(group_id: str, api_version: int, *, is_other_type: bool) -> DescribedGroup:
    """A group that is not classic or does not exist. Before version 6 it is a dead group."""
    has_code = api_version >= GROUP_NOT_FOUND_SINCE_DESCRIBE
    reason = "is not a classic group" if is_other_type else "not found"
    return described_error(
        group_id,
        ErrorCode.GROUP_ID_NOT_FOUND if has_code else ErrorCode.NONE,
        f"Group {group_id} {reason}." if has_code else None,
        state=GroupState.DEAD.value,
    )


def described_classic(group: ClassicGroup) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=tuple(_classic_member(group, member) for member in group.members.values()),
    )


def _classic_member(group: ClassicGroup, member: GroupMember) -> DescribedGroupMember:
    is_stable = group.state is GroupState.STABLE
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
        member_assignment=member.assignment,
    )


def consumer_error(
    group_id: str, code: ErrorCode, message: str | None = None
) -> consumer.DescribedGroup:
    return consumer.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def described_consumer(
    group: EpochGroup, view: GroupCatalog, assignors: tuple[str, ...]
) -> consumer.DescribedGroup:
    return consumer.DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor(assignors),
        members=tuple(_consumer_member(group, view, one) for one in group.members.values()),
    )


def _consumer_member(group: EpochGroup, view: GroupCatalog, member: EpochMember) -> consumer.Member:
    details = member.details
    return consumer.Member(
        member_id=member.member_id,
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        member_epoch=member.current.epoch,
        client_id=details.client_id,
        client_host=details.client_host,
        subscribed_topic_names=details.topics,
        subscribed_topic_regex=details.regex or "",
        assignment=_assignment(view, [*member.current.assigned, *member.current.revoking]),
        target_assignment=_assignment(view, group.targets.get(member.member_id, ())),
        member_type=CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    )


def _assignment(view: GroupCatalog, slots: Iterable[TopicSlot]) -> consumer.Assignment:
    topics = []
    for name, indexes in names_of(view, slots).items():
        topic = view.topic(name)
        assert topic is not None, f"{name} was found by its id"
        topics.append(
            consumer.TopicPartitions(topic_id=topic.id, topic_name=name, partitions=indexes)
        )
    return consumer.Assignment(topic_partitions=tuple(topics))


def listed(
    classic: Iterable[ClassicGroup],
    consumers: Iterable[EpochGroup],
    states: frozenset[str],
    types: frozenset[str],
) -> list[ListedGroup]:
    """Groups in the given states and of the given types, in lower case; empty means all."""
    rows = [
        (group.group_id, group.protocol_type or "", group.state.value, group.type)
        for group in classic
    ]
    rows += [
        (group.group_id, CONSUMER, group.state.value, GroupType.CONSUMER) for group in consumers
    ]
    return [
        ListedGroup(
            group_id=group_id, protocol_type=protocol, group_state=state, group_type=kind.value
        )
        for group_id, protocol, state, kind in rows
        if (not states or state.lower() in states) and (not types or kind.value in types)
    ]
