"""DescribeTopicPartitions, version 0: topics in order of their names, page by page (KIP-966).

A page ends after a number of partitions and names the start of the next one. Topics that do not
exist do not count.
"""

from __future__ import annotations

from typing import Final

from riverrun.cluster.topics.names import is_topic_name
from riverrun.metadata.image import BrokerImage, Image, PartitionImage, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import NodeId, TopicName
from riverrun.model.names import INTERNAL_TOPICS
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.broker_visibility import live_brokers
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.describe_topic_partitions_request import (
    DescribeTopicPartitionsRequest,
)
from riverrun.wire.messages.describe_topic_partitions_response import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PAGE_PARTITIONS_MAX: Final = 2000
"""Kafka's default of max.request.partition.size.limit."""


def handle(
    services: NodeServices, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    image = services.metadata.current
    names = _names(services, context, image, request)
    live = live_brokers(image, context.listener)
    partitions_left = max(1, min(request.response_partition_limit, PAGE_PARTITIONS_MAX))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in names:
        if partitions_left == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        start = 0
        if request.cursor is not None and name == request.cursor.topic_name:
            start = request.cursor.partition_index
        if request.topics and not services.access.permits(
            context, AclOperation.DESCRIBE, ResourceType.TOPIC, name
        ):
            topics.append(_refused(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        operations = services.access.operations(context, ResourceType.TOPIC, name)
        topic = image.topics_by_name.get(name)
        if topic is None:
            topics.append(_unknown(name, operations))
            continue
        end = min(start + partitions_left, len(topic.partitions))
        topics.append(_topic(image, live, topic, start, end, operations))
        partitions_left -= max(end - start, 0)
        if end < len(topic.partitions) and start < end:
            return _page(topics, Cursor(topic_name=name, partition_index=end))
    return _page(topics, None)


def failed(
    request: DescribeTopicPartitionsRequest, code: ErrorCode, message: str | None
) -> DescribeTopicPartitionsResponse:
    return _page([_refused(topic.name, code) for topic in request.topics], None)


def _refused(name: str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_id=None, partitions=()
    )


def _may_see(services: NodeServices, context: RequestContext, name: str) -> bool:
    return services.access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def _names(
    services: NodeServices,
    context: RequestContext,
    image: Image,
    request: DescribeTopicPartitionsRequest,
) -> list[TopicName]:
    """The names to describe, from the cursor on; no names at all means every visible topic."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.topics:
        names = sorted(dict.fromkeys(TopicName(topic.name) for topic in request.topics))
        if cursor is not None and cursor.topic_name not in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
    else:
        names = sorted(n for n in image.topics_by_name if _may_see(services, context, n))
    return [name for name in names if cursor is None or name >= cursor.topic_name]


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        throttle_time_ms=0, topics=tuple(topics), next_cursor=cursor
    )


def _unknown(name: str, operations: int) -> DescribeTopicPartitionsResponseTopic:
    is_valid = is_topic_name(name)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_valid
        else ErrorCode.INVALID_TOPIC_EXCEPTION,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=operations,
    )


def _topic(
    image: Image,
    live: dict[NodeId, BrokerImage],
    topic: TopicImage,
    start: int,
    end: int,
    operations: int,
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            _partition(image, live, index, topic.partitions[index]) for index in range(start, end)
        ),
        topic_authorized_operations=operations,
    )


def _partition(
    image: Image, live: dict[NodeId, BrokerImage], index: int, partition: PartitionImage
) -> DescribeTopicPartitionsResponsePartition:
    has_leader = partition.leader in live
    code = ErrorCode.NONE
    if not has_leader:
        broker = image.brokers.get(partition.leader)
        is_elsewhere = broker is not None and not broker.is_fenced
        code = ErrorCode.LISTENER_NOT_FOUND if is_elsewhere else ErrorCode.LEADER_NOT_AVAILABLE
    return DescribeTopicPartitionsResponsePartition(
        error_code=code,
        partition_index=index,
        leader_id=partition.leader if has_leader else NodeId(-1),
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.elr,
        last_known_elr=partition.last_known_elr,
        offline_replicas=tuple(one for one in partition.replicas if one not in live),
    )
