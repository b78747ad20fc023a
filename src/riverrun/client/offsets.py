"""Offsets of many partitions: those of the logs, and those committed by a group.

One request goes to each leader, not to each partition. OffsetCommit and OffsetFetch use at most
version 9, the last one with topic names, because callers have names and not topic ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.ports.aio import run_together
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from riverrun.wire.messages.list_offsets_response import ListOffsetsResponse
from riverrun.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from riverrun.wire.messages.offset_commit_response import OffsetCommitResponse
from riverrun.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponse

Result = TypeVar("Result")
BY_NAME_COMMIT_MAX = 9
NO_GENERATION = -1


async def offsets_at(
    pool: ConnectionPool,
    timestamps: Mapping[TopicPartition, int],
    *,
    is_committed_only: bool = False,
) -> dict[TopicPartition, int]:
    """The first offset at or after a timestamp for each partition; -1 if there is none.

    ``EARLIEST`` and ``LATEST`` of ``client.partitions`` are timestamps too. With
    ``is_committed_only``, the latest offset is the last stable offset (KIP-98).
    """
    left = dict(timestamps)
    found: dict[TopicPartition, int] = {}

    async def once() -> None:
        by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        for at, timestamp in left.items():
            leader = await pool.leader(at.topic, at.partition)
            wanted = ListOffsetsPartition(partition_index=at.partition, timestamp=timestamp)
            by_leader.setdefault(leader, {}).setdefault(at.topic, []).append(wanted)
        for rows in await run_together(
            _list_offsets(pool, leader, topics, is_committed_only)
            for leader, topics in by_leader.items()
        ):
            for at, (code, offset) in rows.items():
                if code is ErrorCode.NONE:
                    found[at] = offset
                    left.pop(at, None)
                elif left.get(at) is not None and code not in RETRIABLE:
                    raise KafkaError(code, f"{at}: {code.name}")
        if left:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the leader of {min(left)} is not known"
            )

    if left:
        await pool.try_again(once)
    return found


async def _list_offsets(
    pool: ConnectionPool,
    leader: int,
    topics: Mapping[str, list[ListOffsetsPartition]],
    is_committed_only: bool,
) -> dict[TopicPartition, tuple[ErrorCode, int]]:
    message = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if is_committed_only else 0,
        topics=tuple(
            ListOffsetsTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        ),
    )
    response: ListOffsetsResponse = await pool.request_node(leader, ApiKey.LIST_OFFSETS, message)
    return {
        _place(topic.name, row.partition_index): (row.error_code, row.offset)
        for topic in response.topics
        for row in topic.partitions
    }


class CommittedPosition(Struct, frozen=True):
    """A committed offset, with the text that the consumer stored beside it."""

    offset: int
    metadata: str


async def committed_offsets(
    pool: ConnectionPool, group: str, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """All committed offsets of a group, as ``committed_positions``."""
    found = await committed_positions(pool, group, partitions)
    return {at: row.offset for at, row in found.items()}


async def committed_positions(
    pool: ConnectionPool, group: str, partitions: Sequence[TopicPartition] | None = None
) -> dict[TopicPartition, CommittedPosition]:
    """All committed offsets of a group with their metadata; empty for an unknown group.

    With ``partitions``, only theirs, and only once no open transaction is about to change them
    (KIP-447). A request for all offsets does not report offsets that are only pending.
    """
    topics, rows = None, None
    if partitions is not None:
        named: dict[str, list[int]] = {}
        for at in partitions:
            named.setdefault(at.topic, []).append(at.partition)
        topics = tuple(
            OffsetFetchRequestTopic(name=name, partition_indexes=tuple(indexes))
            for name, indexes in named.items()
        )
        rows = tuple(
            OffsetFetchRequestTopics(name=name, partition_indexes=tuple(indexes))
            for name, indexes in named.items()
        )
    message = OffsetFetchRequest(
        group_id=group,
        topics=topics,
        groups=(OffsetFetchRequestGroup(group_id=group, topics=rows),),
        require_stable=partitions is not None,
    )
    response: OffsetFetchResponse = await _request_coordinator(
        pool, group, ApiKey.OFFSET_FETCH, message, _error_of_fetch
    )
    found = response.groups[0].topics if response.groups else response.topics
    code = _error_of_fetch(response)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"group {group}: {code.name}")
    return {
        _place(topic.name, row.partition_index): CommittedPosition(
            row.committed_offset, row.metadata or ""
        )
        for topic in found
        for row in topic.partitions
        if row.committed_offset >= 0
    }


async def commit_offsets(
    pool: ConnectionPool,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation: int = NO_GENERATION,
    member_id: str = "",
) -> None:
    """Commit as a member, or from outside while the group has no members. Raises KafkaError."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for at, offset in offsets.items():
        row = OffsetCommitRequestPartition(
            partition_index=at.partition, committed_offset=offset, committed_metadata=""
        )
        topics.setdefault(at.topic, []).append(row)
    message = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=tuple(
            OffsetCommitRequestTopic(name=name, partitions=tuple(rows))
            for name, rows in topics.items()
        ),
    )
    response: OffsetCommitResponse = await _request_coordinator(
        pool, group, ApiKey.OFFSET_COMMIT, message, _error_of_commit
    )
    for topic in response.topics:
        for row_response in topic.partitions:
            code = row_response.error_code
            if code is not ErrorCode.NONE:
                place = f"{topic.name}-{row_response.partition_index}"
                raise KafkaError(code, f"group {group}, {place}: {code.name}")


async def _request_coordinator(
    pool: ConnectionPool,
    group: str,
    key: ApiKey,
    message: Struct,
    error_of: Callable[[Result], ErrorCode],
) -> Result:
    """``ConnectionPool.group_request`` in a version with topic names."""

    async def once() -> Result:
        connection = await pool.node_connection(await pool.coordinator(group))
        version = connection.version_of(key, at_most=BY_NAME_COMMIT_MAX)
        response: Result = await connection.request(key, message, version=version)
        code = error_of(response)
        if code in RETRIABLE and code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(code, f"group {group}: {code.name}")
        return response

    return await pool.try_again(once, group=group)


def _error_of_fetch(response: OffsetFetchResponse) -> ErrorCode:
    code = response.groups[0].error_code if response.groups else response.error_code
    if code is not ErrorCode.NONE:
        return code
    topics = response.groups[0].topics if response.groups else response.topics
    is_unstable = any(
        row.error_code is ErrorCode.UNSTABLE_OFFSET_COMMIT
        for topic in topics
        for row in topic.partitions
    )
    return ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE


def _error_of_commit(response: OffsetCommitResponse) -> ErrorCode:
    codes = (row.error_code for topic in response.topics for row in topic.partitions)
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
