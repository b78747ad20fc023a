"""OffsetFetch: the committed offsets of groups.

Behaviour:

* An unknown group has no committed offsets: -1, without an error.
* A request for stable offsets waits a short time for transactions that may change them. Kafka
  responds at once with UNSTABLE_OFFSET_COMMIT, and its client retries.
* Up to v7, an error of the group is repeated for each requested partition. aiokafka 0.14 sends v3,
  ignores the error of the group, and takes a partition without a row for one without a committed
  offset: it then reads the partition again from the start.

Versions 1 to 10:

* v1: one group
* v2: null for all its topics; an error for the whole group
* v5: leader epoch
* v6: flexible
* v7: stable offsets only (KIP-447)
* v8: several groups (KIP-709)
* v9: member epochs (KIP-848)
* v10: topic ids instead of names
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicId, TopicName
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from riverrun.wire.messages.offset_fetch_response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

MANY_GROUPS_SINCE: Final = 8
TOPIC_IDS_SINCE: Final = 10


async def handle(
    services: BrokerServices, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    version = context.api_version
    if version >= MANY_GROUPS_SINCE:
        found = [await _fetch(services, context, request, one) for one in request.groups]
        return OffsetFetchResponse(groups=tuple(found))
    only = _only_group(request)
    fetched = await _fetch(services, context, request, only)
    if fetched.error_code is not ErrorCode.NONE:
        return OffsetFetchResponse(
            error_code=fetched.error_code, topics=_all_failed(only, fetched.error_code)
        )
    return OffsetFetchResponse(topics=tuple(_before_groups(topic) for topic in fetched.topics))


def failed(
    request: OffsetFetchRequest, code: ErrorCode, message: str | None
) -> OffsetFetchResponse:
    """The fields of all versions; the codec sends those of one."""
    groups = tuple(
        OffsetFetchResponseGroup(group_id=one.group_id, topics=(), error_code=code)
        for one in request.groups
    )
    topics = _all_failed(_only_group(request), code)
    return OffsetFetchResponse(error_code=code, topics=topics, groups=groups)


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The group of a request before v8."""
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else tuple(
            OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
            for one in topics
        ),
    )


async def _fetch(
    services: BrokerServices,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    access, describe = services.access, AclOperation.DESCRIBE
    if not access.permits(context, describe, ResourceType.GROUP, group.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=code)
    image = services.metadata.current
    has_ids = context.api_version >= TOPIC_IDS_SINCE
    topics, unknown = _named(image, group.topics, has_ids=has_ids)
    if topics is not None and access.is_enabled:
        hidden = [
            topic
            for topic in topics
            if not access.permits(context, describe, ResourceType.TOPIC, topic.name)
        ]
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        unknown += [_failed_topic(topic, code) for topic in hidden]
        topics = [topic for topic in topics if topic not in hidden]
    member = (group.member_id, group.member_epoch)
    try:
        if request.require_stable:
            found = await services.groups.fetch_stable_offsets(group.group_id, topics, member)
        else:
            found = services.groups.fetch_offsets(group.group_id, topics, member)
    except KafkaError as error:
        code = error.code
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
            # Older consumers do not retry with the other code here.
            code = ErrorCode.NOT_COORDINATOR
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=(), error_code=code)
    if topics is None and access.is_enabled:
        seen = [
            topic
            for topic in found.topics
            if access.allows(context, describe, ResourceType.TOPIC, topic.name)
        ]
        found = replace(found, topics=tuple(seen))
    if has_ids and topics is None:
        found = replace(found, topics=_with_ids(image, found.topics))
    return replace(found, topics=(*found.topics, *unknown)) if unknown else found


def _named(
    image: Image, topics: Sequence[OffsetFetchRequestTopics] | None, *, has_ids: bool
) -> tuple[list[OffsetFetchRequestTopics] | None, list[OffsetFetchResponseTopics]]:
    """The topics with both name and id, and the results for unknown ids."""
    if topics is None:
        return None, []
    known = []
    unknown = []
    for topic in topics:
        if has_ids:
            by_id = None
            if topic.topic_id is not None:
                by_id = image.topics_by_id.get(TopicId(topic.topic_id))
            if by_id is None:
                unknown.append(_failed_topic(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                known.append(replace(topic, name=by_id.name))
        else:
            by_name = image.topics_by_name.get(TopicName(topic.name))
            known.append(topic if by_name is None else replace(topic, topic_id=by_name.id))
    return known, unknown


def _with_ids(
    image: Image, topics: Sequence[OffsetFetchResponseTopics]
) -> tuple[OffsetFetchResponseTopics, ...]:
    """The topics with their ids, without deleted topics."""
    pairs = ((topic, image.topics_by_name.get(TopicName(topic.name))) for topic in topics)
    return tuple(replace(topic, topic_id=one.id) for topic, one in pairs if one is not None)


def _all_failed(
    group: OffsetFetchRequestGroup, code: ErrorCode
) -> tuple[OffsetFetchResponseTopic, ...]:
    return tuple(_before_groups(_failed_topic(topic, code)) for topic in group.topics or ())


def _failed_topic(topic: OffsetFetchRequestTopics, code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        ),
    )


def _before_groups(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(
        name=topic.name,
        partitions=tuple(
            OffsetFetchResponsePartition(
                partition_index=one.partition_index,
                committed_offset=one.committed_offset,
                committed_leader_epoch=one.committed_leader_epoch,
                metadata=one.metadata,
                error_code=one.error_code,
            )
            for one in topic.partitions
        ),
    )
