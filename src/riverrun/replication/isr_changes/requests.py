"""Proposals of many partitions as one AlterPartition, and its answer taken apart (KIP-497, 903)."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from riverrun.model.ids import LeaderEpoch, NodeId
from riverrun.replication.leader_state import IsrProposal, IsrVerdict
from riverrun.replication.partition import Partition
from riverrun.wire.messages.alter_partition_request import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse

VERSION = 3
RECOVERED = 0

Verdicts = Mapping[tuple[UUID, int], IsrVerdict]


def request_of(
    proposals: Mapping[Partition, IsrProposal], node: NodeId, broker_epoch: int
) -> AlterPartitionRequest:
    topics: dict[UUID, list[PartitionData]] = {}
    for partition, proposal in proposals.items():
        topics.setdefault(partition.topic_id, []).append(
            PartitionData(
                partition_index=partition.name.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr=proposal.isr,
                new_isr_with_epochs=tuple(
                    BrokerState(broker_id=member, broker_epoch=proposal.broker_epochs[member])
                    for member in proposal.isr
                ),
                leader_recovery_state=RECOVERED,
                partition_epoch=proposal.partition_epoch,
            )
        )
    return AlterPartitionRequest(
        broker_id=node,
        broker_epoch=broker_epoch,
        topics=tuple(
            TopicData(topic_id=topic_id, partitions=tuple(rows))
            for topic_id, rows in topics.items()
        ),
    )


def verdicts_of(response: AlterPartitionResponse) -> Verdicts:
    return {
        (topic.topic_id, row.partition_index): IsrVerdict(
            error=row.error_code,
            isr=tuple(NodeId(node) for node in row.isr),
            leader_epoch=LeaderEpoch(row.leader_epoch),
            partition_epoch=row.partition_epoch,
        )
        for topic in response.topics
        if topic.topic_id is not None
        for row in topic.partitions
    }
