"""ListPartitionReassignments: the partitions that are being moved."""

from __future__ import annotations

from typing import NamedTuple

from riverrun.admin.requests import check
from riverrun.client.pool import ConnectionPool
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from riverrun.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
)


class OngoingMove(NamedTuple):
    """``replicas`` include the ones that come and the ones that go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def ask_ongoing_moves(pool: ConnectionPool) -> dict[TopicPartition, OngoingMove]:
    answer: ListPartitionReassignmentsResponse = await pool.request(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None)
    )
    check(answer.error_code, answer.error_message, "moves")
    return {
        TopicPartition(TopicName(topic.name), PartitionIndex(row.partition_index)): OngoingMove(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }
