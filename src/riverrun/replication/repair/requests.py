"""AssignReplicasToDirs as a broker sends it (KIP-858)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.replication.partition import Partition
from riverrun.wire.messages.assign_replicas_to_dirs_request import (
    AssignReplicasToDirsRequest,
    DirectoryData,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.assign_replicas_to_dirs_response import AssignReplicasToDirsResponse

Key = tuple[UUID, int]


def request_of(
    node: NodeId, broker_epoch: int, assigned: Mapping[UUID, Iterable[Partition]]
) -> AssignReplicasToDirsRequest:
    directories: list[DirectoryData] = []
    for directory, partitions in assigned.items():
        by_topic: dict[UUID, list[int]] = {}
        for partition in partitions:
            by_topic.setdefault(partition.topic_id, []).append(partition.name.partition)
        topics = tuple(
            TopicData(
                topic_id=topic_id,
                partitions=tuple(PartitionData(partition_index=index) for index in indexes),
            )
            for topic_id, indexes in by_topic.items()
        )
        if topics:
            directories.append(DirectoryData(id_=directory, topics=topics))
    return AssignReplicasToDirsRequest(
        broker_id=node, broker_epoch=broker_epoch, directories=tuple(directories)
    )


def codes_of(response: AssignReplicasToDirsResponse) -> dict[Key, ErrorCode]:
    return {
        (topic.topic_id, one.partition_index): one.error_code
        for directory in response.directories
        for topic in directory.topics
        for one in topic.partitions
        if topic.topic_id is not None
    }
