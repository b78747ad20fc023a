"""DescribeQuorum, versions 0 to 2: who votes on the metadata log, answered by any broker."""

from __future__ import annotations

from typing import Final

from riverrun.model.errors import ErrorCode
from riverrun.server.context import RequestContext
from riverrun.server.parts import Parts
from riverrun.wire.messages import describe_quorum_request as asked
from riverrun.wire.messages.describe_quorum_response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

TOPIC: Final = "__cluster_metadata"


def handle(
    parts: Parts, context: RequestContext, request: asked.DescribeQuorumRequest
) -> DescribeQuorumResponse:
    names = [
        (topic.topic_name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
    ]
    if names != [(TOPIC, 0)]:
        return _unknown(request)
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        error_message="",
        topics=(TopicData(topic_name=TOPIC, partitions=(_described(parts),)),),
        nodes=tuple(
            Node(
                node_id=voter.id,
                listeners=tuple(
                    Listener(name=name, host=host, port=port)
                    for name, (host, port) in voter.endpoints.items()
                ),
            )
            for voter in parts.metadata.voters
        ),
    )


def _described(parts: Parts) -> PartitionData:
    log = parts.metadata
    now = parts.clock.now_ms()
    return PartitionData(
        partition_index=0,
        error_code=ErrorCode.NONE,
        error_message="",
        leader_id=log.node_id,
        leader_epoch=log.epoch,
        high_watermark=log.high_watermark,
        current_voters=tuple(
            ReplicaState(
                replica_id=voter.id,
                replica_directory_id=voter.directory_id,
                log_end_offset=log.end_offset,
                last_fetch_timestamp=now,
                last_caught_up_timestamp=now,
            )
            for voter in log.voters
        ),
        observers=(),
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
