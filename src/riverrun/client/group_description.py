"""Describes a group of either protocol in the same way.

Classic groups are described by DescribeGroups, those of the consumer protocol (KIP-848) by
ConsumerGroupDescribe. A client does not know which kind a group is, so both are asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from riverrun.client.connection import UnsupportedApi
from riverrun.client.consumer_protocol import NotConsumerProtocol, read_assignment
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages import consumer_group_describe_response as consumer
from riverrun.wire.messages import describe_groups_response as classic
from riverrun.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from riverrun.wire.messages.describe_groups_request import DescribeGroupsRequest

DEAD: Final = "Dead"
CLASSIC_TYPE: Final = "classic"
CONSUMER_TYPE: Final = "consumer"


class MemberDescription(Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int | None = None
    """None in classic groups."""
    state: str | None = None
    """Stable, or Reconciling until the member has its target assignment."""


class GroupDescription(Struct, frozen=True, kw_only=True):
    name: str
    type: str
    state: str
    assignor: str
    members: tuple[MemberDescription, ...]
    epoch: int | None = None
    assignment_epoch: int | None = None


async def describe_group_of_any_type(pool: ConnectionPool, name: str) -> GroupDescription | None:
    """None for an unknown group. Raises ``KafkaError`` for other failures."""
    answer: classic.DescribeGroupsResponse = await pool.group_request(
        name,
        ApiKey.DESCRIBE_GROUPS,
        DescribeGroupsRequest(groups=(name,)),
        lambda answer: ErrorCode(answer.groups[0].error_code),
    )
    row = answer.groups[0]
    if row.error_code is not ErrorCode.GROUP_ID_NOT_FOUND and row.group_state != DEAD:
        _check(name, row.error_code, row.error_message)
        return from_classic(row)
    try:
        modern: consumer.ConsumerGroupDescribeResponse = await pool.group_request(
            name,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            ConsumerGroupDescribeRequest(group_ids=(name,), include_authorized_operations=False),
            lambda answer: ErrorCode(answer.groups[0].error_code),
        )
    except UnsupportedApi:
        return None
    found = modern.groups[0]
    if found.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    _check(name, found.error_code, found.error_message)
    return from_consumer(found)


def _check(name: str, code: ErrorCode, message: str | None) -> None:
    if code is not ErrorCode.NONE:
        raise KafkaError(code, message or f"group {name}: {code.name}")


def from_classic(row: classic.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        name=row.group_id,
        type=CLASSIC_TYPE,
        state=row.group_state,
        assignor=row.protocol_data,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=assigned_partitions(member.member_assignment),
            )
            for member in sorted(row.members, key=lambda one: one.member_id)
        ),
    )


def from_consumer(row: consumer.DescribedGroup) -> GroupDescription:
    return GroupDescription(
        name=row.group_id,
        type=CONSUMER_TYPE,
        state=row.group_state,
        assignor=row.assignor_name,
        epoch=row.group_epoch,
        assignment_epoch=row.assignment_epoch,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=_partitions(member.assignment),
                epoch=member.member_epoch,
                state=_member_state(row, member),
            )
            for member in sorted(row.members, key=lambda one: one.member_id)
        ),
    )


def _member_state(group: consumer.DescribedGroup, member: consumer.Member) -> str:
    is_current = member.member_epoch == group.assignment_epoch
    has_target = _partitions(member.assignment) == _partitions(member.target_assignment)
    return "Stable" if is_current and has_target else "Reconciling"


def _partitions(assignment: consumer.Assignment) -> tuple[TopicPartition, ...]:
    return _sorted(
        (topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def assigned_partitions(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a classic member; none if the group is not one of consumers."""
    try:
        assignment = read_assignment(data)
    except NotConsumerProtocol:
        return ()
    return _sorted((topic, index) for topic, indexes in assignment.items() for index in indexes)


def _sorted(places: Iterable[tuple[str, int]]) -> tuple[TopicPartition, ...]:
    found = (TopicPartition(TopicName(name), PartitionIndex(index)) for name, index in places)
    return tuple(sorted(found))
