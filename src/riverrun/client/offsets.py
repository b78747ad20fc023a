"""Offsets of many partitions at once: of the log, and those that a group has committed.

One request to each leader instead of one for each partition. Requests name topics, not ids
(OffsetCommit and OffsetFetch up to version 9), since people name topics too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from riverrun.client.pool import ConnectionPool
from riverrun.client.retry import RETRIABLE
from riverrun.client.together import together
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
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
)
from riverrun.wire.messages.offset_fetch_response import OffsetFetchResponse

BY_NAME_COMMIT_MAX = 9
NO_GENERATION = -1


async def offsets_at(
    pool: ConnectionPool,
    timestamps: Mapping[TopicPartition, int],
    *,
    is_committed_only: bool = False,
) -> dict[TopicPartition, int]:
    """For each partition the first offset at or after its time; -1 where nothing is that young.

    ``EARLIEST`` and ``LATEST`` of ``client.partitions`` are times too. The latest of what is
    committed is the last stable offset (KIP-98).
    """
    left = dict(timestamps)
    found: dict[TopicPartition, int] = {}

    async def once() -> None:
        by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        for at, timestamp in left.items():
            leader = await pool.leader(at.topic, at.partition)
            wanted = ListOffsetsPartition(partition_index=at.partition, timestamp=timestamp)
            by_leader.setdefault(leader, {}).setdefault(at.topic, []).append(wanted)
        for rows in await together(
            _ask_leader(pool, leader, topics, is_committed_only)
            for leader, topics in by_leader.items()
        ):
            for at, (code, offset) in rows.items():
                if code is ErrorCode.NONE:
                    found[at] = offset
                    left.pop(at, None)
                elif left.get(at) is not None and code not in RETRIABLE:
                    raise KafkaError(code, f"{at}: {code.name}")
        if left:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"no leader answers for {min(left)}")

    if left:
        await pool.try_again(once)
    return found


async def _ask_leader(
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
    answer: ListOffsetsResponse = await pool.request_node(leader, ApiKey.LIST_OFFSETS, message)
    return {
        _place(topic.name, row.partition_index): (row.error_code, row.offset)
        for topic in answer.topics
        for row in topic.partitions
    }


async def committed_offsets(pool: ConnectionPool, group: str) -> dict[TopicPartition, int]:
    """All that a group has committed; empty for a group that nobody knows."""
    message = OffsetFetchRequest(
        group_id=group,
        topics=None,
        groups=(OffsetFetchRequestGroup(group_id=group, topics=None),),
    )
    answer: OffsetFetchResponse = await _ask_coordinator(
        pool, group, ApiKey.OFFSET_FETCH, message, _error_of_fetch
    )
    topics: Iterable[Any] = answer.groups[0].topics if answer.groups else answer.topics
    code = _error_of_fetch(answer)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, f"group {group}: {code.name}")
    return {
        _place(topic.name, row.partition_index): row.committed_offset
        for topic in topics
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
    """Commit as a member, or from outside while the group has none; KafkaError if refused."""
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
    answer: OffsetCommitResponse = await _ask_coordinator(
        pool, group, ApiKey.OFFSET_COMMIT, message, _error_of_commit
    )
    for topic in answer.topics:
        for row_answer in topic.partitions:
            code = row_answer.error_code
            if code is not ErrorCode.NONE:
                place = f"{topic.name}-{row_answer.partition_index}"
                raise KafkaError(code, f"group {group}, {place}: {code.name}")


async def _ask_coordinator(
    pool: ConnectionPool, group: str, key: ApiKey, message: Any, error_of: Any
) -> Any:
    """As ``ConnectionPool.group_request``, in a version that has names of topics."""

    async def once() -> Any:
        connection = await pool.node_connection(await pool.coordinator(group))
        version = connection.version_of(key, BY_NAME_COMMIT_MAX)
        answer = await connection.request(key, message, version=version)
        code = error_of(answer)
        if code in RETRIABLE and code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(code, f"group {group}: {code.name}")
        return answer

    return await pool.try_again(once, group=group)


def _error_of_fetch(answer: OffsetFetchResponse) -> ErrorCode:
    return answer.groups[0].error_code if answer.groups else answer.error_code


def _error_of_commit(answer: OffsetCommitResponse) -> ErrorCode:
    codes = (row.error_code for topic in answer.topics for row in topic.partitions)
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def _place(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
