"""OffsetDelete, version 0: delete committed offsets of topics that a group does not consume
(KIP-496).
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import TopicName
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.offset_delete_request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
)
from riverrun.wire.messages.offset_delete_response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(
    services: BrokerServices, context: RequestContext, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    topics: dict[str, OffsetDeleteResponseTopic] = {}
    accepted: list[OffsetDeleteRequestTopic] = []
    for topic in request.topics:
        known = services.metadata.current.topics_by_name.get(TopicName(topic.name))
        count = 0 if known is None else len(known.partitions)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        may_read = AclOperation.READ
        if not services.access.permits(context, may_read, ResourceType.TOPIC, topic.name):
            count, code = 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
        good = tuple(one for one in topic.partitions if 0 <= one.partition_index < count)
        bad = tuple(
            OffsetDeleteResponsePartition(
                partition_index=one.partition_index,
                error_code=code,
            )
            for one in topic.partitions
            if not 0 <= one.partition_index < count
        )
        if bad:
            _add(topics, OffsetDeleteResponseTopic(name=topic.name, partitions=bad))
        if good:
            accepted.append(replace(topic, partitions=good))
    found = await services.groups.delete_offsets(replace(request, topics=tuple(accepted)))
    for deleted in found.topics:
        _add(topics, deleted)
    return replace(found, topics=tuple(topics.values()))


def failed(
    request: OffsetDeleteRequest, code: ErrorCode, message: str | None
) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=code, throttle_time_ms=0, topics=())


def _add(topics: dict[str, OffsetDeleteResponseTopic], topic: OffsetDeleteResponseTopic) -> None:
    first = topics.get(topic.name)
    if first is not None:
        topic = replace(first, partitions=first.partitions + topic.partitions)
    topics[topic.name] = topic
