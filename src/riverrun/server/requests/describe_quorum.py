"""DescribeQuorum, versions 0 to 2: the voters of the metadata log and the progress of each replica.

Only the leader has this information. A broker forwards the request to it; any other controller
responds with the leader's id.
"""

from __future__ import annotations

from typing import Final

from riverrun.metadata.description import ReplicaDescription
from riverrun.model.errors import ErrorCode
from riverrun.model.names import METADATA_TOPIC
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages import describe_quorum_request as asked
from riverrun.wire.messages.describe_quorum_response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

NO_LEADER: Final = -1


def handle(
    services: NodeServices, context: RequestContext, request: asked.DescribeQuorumRequest
) -> DescribeQuorumResponse:
    names = [
        (topic.topic_name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    ]
    if names != [(METADATA_TOPIC, 0)]:
        return _unknown(request)
    described = services.metadata.describe()
    if described.leader != services.metadata.node_id:
        return _not_leader(described.leader, described.epoch)
    partition = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        error_message="",
        leader_id=services.metadata.node_id,
        leader_epoch=described.epoch,
        high_watermark=described.high_watermark,
        current_voters=tuple(_state(voter) for voter in described.voters),
        observers=tuple(_state(observer) for observer in described.observers),
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=(TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
        nodes=tuple(_node(voter) for voter in described.voters),
    )


def _state(replica: ReplicaDescription) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.id,
        replica_directory_id=replica.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _node(voter: ReplicaDescription) -> Node:
    return Node(
        node_id=voter.id,
        listeners=tuple(
            Listener(name=name, host=host, port=port)
            for name, (host, port) in voter.endpoints.items()
        ),
    )


def _not_leader(leader: int | None, epoch: int) -> DescribeQuorumResponse:
    partition = PartitionData(
        partition_index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        error_message="This node does not lead the metadata quorum.",
        leader_id=NO_LEADER if leader is None else leader,
        leader_epoch=epoch,
        high_watermark=-1,
        current_voters=(),
        observers=(),
    )
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=(TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),),
    )


def _unknown(request: asked.DescribeQuorumRequest) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=tuple(
            TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(
                    PartitionData(
                        partition_index=one.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message="This server does not host this topic-partition.",
                        leader_id=0,
                        leader_epoch=0,
                        high_watermark=0,
                        current_voters=(),
                        observers=(),
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
