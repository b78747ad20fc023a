"""Consumer groups of REST v3: consumers, their assignments, and lags."""

from __future__ import annotations

import re

from msgspec import Struct

from riverrun.admin.groups.admin import (
    Group,
    ListedRow,
    OffsetRow,
    describe_group,
    list_all,
)
from riverrun.admin.requests import ask_each
from riverrun.client.group_description import MemberDescription
from riverrun.console.api.v3.frame import (
    V3Link,
    V3List,
    V3Metadata,
    V3Request,
    not_found,
    operation,
)
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.describe_groups_request import DescribeGroupsRequest

ANSWER_SECONDS_MAX = 10.0
WORD = re.compile(r"(?<!^)(?=[A-Z])")


class V3ConsumerGroup(Struct, frozen=True, kw_only=True):
    """A consumer group."""

    kind: str = "KafkaConsumerGroup"
    metadata: V3Metadata
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: str
    coordinator: V3Link
    consumers: V3Link
    lag_summary: V3Link


class V3Consumer(Struct, frozen=True, kw_only=True):
    """A member of a group."""

    kind: str = "KafkaConsumer"
    metadata: V3Metadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: V3Link


class V3Assignment(Struct, frozen=True, kw_only=True):
    """A partition that a member reads."""

    kind: str = "KafkaConsumerAssignment"
    metadata: V3Metadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: V3Link
    lag: V3Link


class V3ConsumerLag(Struct, frozen=True, kw_only=True):
    """How far a group is behind in one partition. Names are empty if no member reads it."""

    kind: str = "KafkaConsumerLag"
    metadata: V3Metadata
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int
    log_end_offset: int
    lag: int
    consumer_id: str
    instance_id: str | None
    client_id: str


class V3LagSummary(Struct, frozen=True, kw_only=True):
    """The sum of the lags of a group, and the partition with the largest one."""

    kind: str = "KafkaConsumerGroupLagSummary"
    metadata: V3Metadata
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: V3Link
    max_lag_partition: V3Link


async def list_groups(request: V3Request) -> V3List[V3ConsumerGroup]:
    found = await list_all(request.pool)
    assignors = await _assignors(request, found)
    rows = [
        _described(
            request,
            row.group,
            state=row.state,
            assignor=assignors.get(row.group, ""),
            coordinator=row.coordinator,
            is_simple=not row.protocol_type,
        )
        for row in found
    ]
    return request.listed("KafkaConsumerGroupList", ["consumer-groups"], rows)


async def _assignors(request: V3Request, listed: list[ListedRow]) -> dict[str, str]:
    """The assignors of groups; a coordinator that does not respond is left out."""
    by_node: dict[int, list[str]] = {}
    for row in listed:
        by_node.setdefault(row.coordinator, []).append(row.group)
    messages = {node: DescribeGroupsRequest(groups=tuple(names)) for node, names in by_node.items()}
    answers, _ = await ask_each(
        request.pool, messages, ApiKey.DESCRIBE_GROUPS, limit_s=ANSWER_SECONDS_MAX
    )
    return {
        group.group_id: group.protocol_data
        for answer in answers.values()
        for group in answer.groups
        if group.error_code is ErrorCode.NONE
    }


async def get_group(request: V3Request) -> V3ConsumerGroup:
    group = await _group(request)
    return _described(
        request,
        group.name,
        state=group.state,
        assignor=group.assignor,
        coordinator=group.coordinator,
        is_simple=not group.members and not group.assignor,
    )


async def _group(request: V3Request) -> Group:
    return await describe_group(request.pool, request.params["consumer_group_id"])


def _described(
    request: V3Request, name: str, *, state: str, assignor: str, coordinator: int, is_simple: bool
) -> V3ConsumerGroup:
    place = ("consumer-groups", name)
    return V3ConsumerGroup(
        metadata=request.metadata(*place, name=f"/consumer-group={name}"),
        cluster_id=request.cluster_id,
        consumer_group_id=name,
        is_simple=is_simple,
        partition_assignor=assignor,
        state=WORD.sub("_", state).upper() or "UNKNOWN",
        coordinator=request.link("brokers", coordinator),
        consumers=request.link(*place, "consumers"),
        lag_summary=request.link(*place, "lag-summary"),
    )


# Consumers


async def list_consumers(request: V3Request) -> V3List[V3Consumer]:
    group = await _group(request)
    rows = [_consumer(request, group, member) for member in group.members]
    place = ["consumer-groups", group.name, "consumers"]
    return request.listed("KafkaConsumerList", place, rows)


async def get_consumer(request: V3Request) -> V3Consumer:
    group, member = await _member(request)
    return _consumer(request, group, member)


async def _member(request: V3Request) -> tuple[Group, MemberDescription]:
    group, wanted = await _group(request), request.params["consumer_id"]
    for member in group.members:
        if member.member_id == wanted:
            return group, member
    raise not_found(f"Consumer {wanted} cannot be found in group {group.name}.")


def _consumer(request: V3Request, group: Group, member: MemberDescription) -> V3Consumer:
    place = ("consumer-groups", group.name, "consumers", member.member_id)
    name = f"/consumer-group={group.name}/consumer={member.member_id}"
    return V3Consumer(
        metadata=request.metadata(*place, name=name),
        cluster_id=request.cluster_id,
        consumer_group_id=group.name,
        consumer_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        assignments=request.link(*place, "assignments"),
    )


async def list_assignments(request: V3Request) -> V3List[V3Assignment]:
    group, member = await _member(request)
    rows = [_assignment(request, group, member, at) for at in member.partitions]
    place = ["consumer-groups", group.name, "consumers", member.member_id, "assignments"]
    return request.listed("KafkaConsumerAssignmentList", place, rows)


async def get_assignment(request: V3Request) -> V3Assignment:
    group, member = await _member(request)
    topic, index = request.params["topic_name"], request.number("partition_id")
    for at in member.partitions:
        if at.topic == topic and at.partition == index:
            return _assignment(request, group, member, at)
    raise not_found(f"Consumer {member.member_id} does not read {topic}-{index}.")


def _assignment(
    request: V3Request, group: Group, member: MemberDescription, at: TopicPartition
) -> V3Assignment:
    of_group = ("consumer-groups", group.name)
    where = (at.topic, "partitions", at.partition)
    place = (*of_group, "consumers", member.member_id, "assignments", *where)
    name = (
        f"/consumer-group={group.name}/consumer={member.member_id}/assignment={at.topic}"
        f"/partition={at.partition}"
    )
    return V3Assignment(
        metadata=request.metadata(*place, name=name),
        cluster_id=request.cluster_id,
        consumer_group_id=group.name,
        consumer_id=member.member_id,
        topic_name=at.topic,
        partition_id=at.partition,
        partition=request.link("topics", *where),
        lag=request.link(*of_group, "lags", *where),
    )


# Lags


async def list_lags(request: V3Request) -> V3List[V3ConsumerLag]:
    group = await _group(request)
    rows = [lag for row in group.offsets if (lag := _lag(request, group, row)) is not None]
    place = ["consumer-groups", group.name, "lags"]
    return request.listed("KafkaConsumerLagList", place, rows)


async def get_lag(request: V3Request) -> V3ConsumerLag:
    group = await _group(request)
    topic, index = request.params["topic_name"], request.number("partition_id")
    for row in group.offsets:
        if row.partition.topic == topic and row.partition.partition == index:
            found = _lag(request, group, row)
            if found is not None:
                return found
    raise not_found(f"Group {group.name} has no committed offset of {topic}-{index}.")


def _lag(request: V3Request, group: Group, row: OffsetRow) -> V3ConsumerLag | None:
    """None if the group has not committed an offset, or the topic is gone."""
    if row.committed is None or row.end is None or row.lag is None:
        return None
    at = row.partition
    member = next((one for one in group.members if one.member_id == row.member_id), None)
    name = f"/consumer-group={group.name}/lag={at.topic}/partition={at.partition}"
    place = ("consumer-groups", group.name, "lags", at.topic, "partitions", at.partition)
    return V3ConsumerLag(
        metadata=request.metadata(*place, name=name),
        cluster_id=request.cluster_id,
        consumer_group_id=group.name,
        topic_name=at.topic,
        partition_id=at.partition,
        current_offset=row.committed,
        log_end_offset=row.end,
        lag=row.lag,
        consumer_id="" if member is None else member.member_id,
        instance_id=None if member is None else member.instance_id,
        client_id="" if member is None else member.client_id,
    )


async def get_lag_summary(request: V3Request) -> V3LagSummary:
    group = await _group(request)
    rows = [lag for row in group.offsets if (lag := _lag(request, group, row)) is not None]
    if not rows:
        raise not_found(f"Group {group.name} has not committed any offset.")
    most = max(rows, key=lambda row: row.lag)
    of_group = ("consumer-groups", group.name)
    return V3LagSummary(
        metadata=request.metadata(
            *of_group, "lag-summary", name=f"/consumer-group={group.name}/lag-summary"
        ),
        cluster_id=request.cluster_id,
        consumer_group_id=group.name,
        max_lag_consumer_id=most.consumer_id,
        max_lag_instance_id=most.instance_id,
        max_lag_client_id=most.client_id,
        max_lag_topic_name=most.topic_name,
        max_lag_partition_id=most.partition_id,
        max_lag=most.lag,
        total_lag=sum(row.lag for row in rows),
        max_lag_consumer=request.link(*of_group, "consumers", most.consumer_id),
        max_lag_partition=request.link("topics", most.topic_name, "partitions", most.partition_id),
    )


GROUP = "consumer-groups/{consumer_group_id}"

ENDPOINTS = (
    *operation(
        "GET",
        "consumer-groups",
        list_groups,
        "List consumer groups",
        response=V3List[V3ConsumerGroup],
    ),
    *operation("GET", GROUP, get_group, "Get a consumer group", response=V3ConsumerGroup),
    *operation(
        "GET",
        f"{GROUP}/consumers",
        list_consumers,
        "List the consumers of a group",
        response=V3List[V3Consumer],
    ),
    *operation(
        "GET",
        f"{GROUP}/consumers/{{consumer_id}}",
        get_consumer,
        "Get a consumer",
        response=V3Consumer,
    ),
    *operation(
        "GET",
        f"{GROUP}/consumers/{{consumer_id}}/assignments",
        list_assignments,
        "List the partitions of a consumer",
        response=V3List[V3Assignment],
    ),
    *operation(
        "GET",
        f"{GROUP}/consumers/{{consumer_id}}/assignments/{{topic_name}}/partitions/{{partition_id}}",
        get_assignment,
        "Get a partition of a consumer",
        response=V3Assignment,
    ),
    *operation(
        "GET",
        f"{GROUP}/lags",
        list_lags,
        "List the lags of a group",
        response=V3List[V3ConsumerLag],
    ),
    *operation(
        "GET",
        f"{GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}",
        get_lag,
        "Get the lag of a group in a partition",
        response=V3ConsumerLag,
    ),
    *operation(
        "GET",
        f"{GROUP}/lag-summary",
        get_lag_summary,
        "Get the sum of the lags of a group",
        response=V3LagSummary,
    ),
)
