"""Elections on request, in requests that a controller accepts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from riverrun.admin.cluster.elections import (
    REQUEST_PARTITIONS_MAX,
    ElectionPlan,
    PartitionElection,
    elect,
)
from riverrun.client.pool import ConnectionPool
from riverrun.model.errors import ErrorCode
from riverrun.model.ids import PartitionIndex, TopicName, TopicPartition
from riverrun.wire.apis import ApiKey
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest
from riverrun.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


class Cluster:
    """Elects the preferred leader 1 of every partition except the last of each request."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def request(
        self, api: ApiKey, request: ElectLeadersRequest, *, timeout_s: float
    ) -> ElectLeadersResponse:
        assert api is ApiKey.ELECT_LEADERS
        assert timeout_s > 0
        (topic,) = request.topic_partitions or ()
        self.sizes.append(len(topic.partitions))
        failed = PartitionResult(
            partition_id=topic.partitions[-1],
            error_code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            error_message="not there",
        )
        result = ReplicaElectionResult(topic=topic.topic, partition_result=(failed,))
        return ElectLeadersResponse(throttle_time_ms=0, replica_election_results=(result,))

    async def metadata(self, names: list[str]) -> Any:
        (name,) = names
        rows = [
            SimpleNamespace(partition_index=index, leader_id=1) for index in range(sum(self.sizes))
        ]
        return SimpleNamespace(topics=[SimpleNamespace(name=name, partitions=rows)])


def test_many_elections_are_requested_in_parts() -> None:
    cluster = Cluster()
    count = 2 * REQUEST_PARTITIONS_MAX + 1
    changes = tuple(
        PartitionElection(
            partition=TopicPartition(TopicName("t"), PartitionIndex(index)), old=2, preferred=1
        )
        for index in range(count)
    )
    plan = ElectionPlan(is_unclean=False, changes=changes, partition_count=count)
    done = asyncio.run(elect(cast(ConnectionPool, cluster), plan))
    assert cluster.sizes == [REQUEST_PARTITIONS_MAX, REQUEST_PARTITIONS_MAX, 1]
    failed = [row.partition.partition for row in done if row.failure is not None]
    assert failed == [REQUEST_PARTITIONS_MAX - 1, 2 * REQUEST_PARTITIONS_MAX - 1, count - 1]
    assert {row.new for row in done if row.failure is None} == {1}
