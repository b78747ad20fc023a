"""AlterPartitionReassignments: start and cancel moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.admin.requests import check
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
)

TIMEOUT_MS = 30_000


async def reassign(
    pool: ConnectionPool, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, str]:
    """Move partitions to these replicas, or cancel their moves with None. Returns the failures."""
    topics: dict[str, list[ReassignablePartition]] = {}
    for at, replicas in targets.items():
        topics.setdefault(at.topic, []).append(
            ReassignablePartition(
                partition_index=at.partition,
                replicas=None if replicas is None else tuple(replicas),
            )
        )
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=TIMEOUT_MS,
        topics=tuple(
            ReassignableTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
        ),
    )
    answer: AlterPartitionReassignmentsResponse = await pool.request(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, request, timeout_s=TIMEOUT_MS / 1000
    )
    check(answer.error_code, answer.error_message, "reassignment")
    return {
        TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): (
            row.error_message or row.error_code.name
        )
        for topic in answer.responses
        for row in topic.partitions
        if row.error_code is not ErrorCode.NONE
    }
