"""``riverrun groups list``: all groups with their members, topics and lag.

One request of each kind goes to each coordinator, not to each group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from riverrun.admin.cluster.replica_lag import CLIENT, ask_offsets, leaders_by_node
from riverrun.admin.groups.admin import ListedRow
from riverrun.admin.requests import ask_each
from riverrun.admin.tables import Table
from riverrun.client.group_description import (
    CONSUMER_TYPE,
    DEAD,
    GroupDescription,
    from_classic,
    from_consumer,
)
from riverrun.client.offsets import committed_offsets
from riverrun.client.partitions import LATEST
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.consumer_group_describe_request import ConsumerGroupDescribeRequest
from riverrun.wire.messages.describe_groups_request import DescribeGroupsRequest
from riverrun.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponse

MANY_GROUPS_FROM = 8
"""The first version of OffsetFetch that names several groups (KIP-709)."""
BY_NAME_MAX = 9
"""The last version of OffsetFetch with the names of topics."""

ANSWER_SECONDS_MAX = 10.0

Committed = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    row: ListedRow
    members: int | None
    """None if the coordinator does not describe the group."""
    topics: tuple[str, ...]
    committed: Mapping[TopicPartition, int]
    lag: int | None
    """None if the group has not committed anything, or no leader responds."""

    def described(self) -> dict[str, object]:
        return {
            **self.row.described(), "members": self.members, "topics": list(self.topics),
            "lag": self.lag,
        }  # fmt: skip


async def summarize(pool: ConnectionPool, listed: Sequence[ListedRow]) -> list[GroupSummary]:
    by_node: dict[int, list[str]] = {}
    for row in listed:
        by_node.setdefault(row.coordinator, []).append(row.group)
    described, fetched = await _described(pool, listed), await _committed(pool, by_node)
    places = sorted({at for committed in fetched.values() for at in committed})
    ends = await _ends(pool, places)
    return [
        summary(row, described.get(row.group), fetched.get(row.group, {}), ends) for row in listed
    ]


def summary(
    row: ListedRow,
    described: GroupDescription | None,
    committed: Committed,
    ends: Mapping[TopicPartition, int],
) -> GroupSummary:
    members = () if described is None else described.members
    assigned = [at for member in members for at in member.partitions]
    lags = [max(0, ends[at] - offset) for at, offset in committed.items() if at in ends]
    return GroupSummary(
        row=row,
        members=None if described is None else len(members),
        topics=tuple(sorted({at.topic for at in [*committed, *assigned]})),
        committed=committed,
        lag=sum(lags) if lags else None,
    )


async def _described(
    pool: ConnectionPool, listed: Sequence[ListedRow]
) -> dict[str, GroupDescription]:
    classic: dict[int, list[str]] = {}
    modern: dict[int, list[str]] = {}
    for row in listed:
        kind = modern if row.type.lower() == CONSUMER_TYPE else classic
        kind.setdefault(row.coordinator, []).append(row.group)
    limit_s = ANSWER_SECONDS_MAX
    old = {node: DescribeGroupsRequest(groups=tuple(names)) for node, names in classic.items()}
    answers, _ = await ask_each(pool, old, ApiKey.DESCRIBE_GROUPS, limit_s=limit_s)
    found = {
        group.group_id: from_classic(group)
        for answer in answers.values()
        for group in answer.groups
        if group.error_code is ErrorCode.NONE and group.group_state != DEAD
    }
    new = {
        node: ConsumerGroupDescribeRequest(
            group_ids=tuple(names), include_authorized_operations=False
        )
        for node, names in modern.items()
    }
    answers, _ = await ask_each(pool, new, ApiKey.CONSUMER_GROUP_DESCRIBE, limit_s=limit_s)
    found |= {
        group.group_id: from_consumer(group)
        for answer in answers.values()
        for group in answer.groups
        if group.error_code is ErrorCode.NONE
    }
    return found


async def _committed(
    pool: ConnectionPool, by_node: Mapping[int, Sequence[str]]
) -> dict[str, Committed]:
    found: dict[str, Committed] = {}

    async def ask(node: int, names: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                found.update(await _committed_on(pool, node, names))
        except OSError:
            return  # a coordinator that has just gone: its groups have no known lag

    await run_together(ask(node, names) for node, names in sorted(by_node.items()))
    return found


async def _committed_on(
    pool: ConnectionPool, node: int, names: Sequence[str]
) -> dict[str, Committed]:
    connection = await pool.node_connection(node)
    version = connection.version_of(ApiKey.OFFSET_FETCH, at_most=BY_NAME_MAX)
    if version < MANY_GROUPS_FROM:
        return {name: await committed_offsets(pool, name) for name in names}
    message = OffsetFetchRequest(
        group_id="",
        topics=None,
        groups=tuple(OffsetFetchRequestGroup(group_id=name, topics=None) for name in names),
    )
    response: OffsetFetchResponse = await connection.request(
        ApiKey.OFFSET_FETCH, message, version=version
    )
    return {
        group.group_id: {
            TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): (
                row.committed_offset
            )
            for topic in group.topics
            for row in topic.partitions
            if row.committed_offset >= 0
        }
        for group in response.groups
        if group.error_code is ErrorCode.NONE
    }


async def _ends(
    pool: ConnectionPool, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """End offsets, without partitions that were deleted or whose leader does not respond."""
    names = sorted({at.topic for at in places})
    if not names:
        return {}
    topics = [
        topic for topic in (await pool.metadata(names)).topics if topic.error_code is ErrorCode.NONE
    ]
    led = {
        node: rows for node, rows in leaders_by_node(topics).items() if node in pool.cluster.nodes
    }
    ends, _ = await ask_offsets(pool, led, LATEST, replica_id=CLIENT)
    return {at: offset for (_, at), offset in ends.items()}


def groups_table(groups: Sequence[GroupSummary]) -> Table:
    return Table(
        columns=(
            "group", "state", "members", "lag", "topics", "type", "protocol", "coordinator",
        ),
        wide=("protocol", "coordinator"),
        rows=[
            (
                group.row.group, group.row.state, group.members, group.lag,
                ",".join(group.topics) or None, group.row.type,
                group.row.protocol_type or None, str(group.row.coordinator),
            )
            for group in groups
        ],
        empty="There are no groups. `riverrun consume TOPIC --group NAME` creates one.",
    )  # fmt: skip
