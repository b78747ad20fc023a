"""OffsetForLeaderEpoch, versions 2 to 4: the end offset of a leader epoch.

A reader finds the common prefix of two logs by it. Consumers detect truncation of their log
(KIP-101, KIP-279, KIP-320).
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import LeaderEpoch
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.redirects import missing
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.offset_for_leader_epoch_request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from riverrun.wire.messages.offset_for_leader_epoch_response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def handle(
    services: BrokerServices, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        throttle_time_ms=0,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _result(services, context, topic.topic, wanted) for wanted in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _result(
    services: BrokerServices, context: RequestContext, topic: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    access = services.access
    try:
        if not access.allows_cluster(context, AclOperation.CLUSTER_ACTION):
            access.require(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
        partition = services.replicas.find(topic, wanted.partition)
        if partition is None:
            raise KafkaError(missing(services, topic, wanted.partition))
        partition.check_leader(wanted.current_leader_epoch)
    except KafkaError as error:
        return EpochEndOffset(error_code=error.code, partition=wanted.partition)
    epoch, end = partition.log.epoch_end(LeaderEpoch(wanted.leader_epoch))
    return EpochEndOffset(
        error_code=ErrorCode.NONE, partition=wanted.partition, leader_epoch=epoch, end_offset=end
    )
