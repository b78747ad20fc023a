"""OffsetCommit: store the committed offsets of a group.

Behaviour:

* Partitions that do not exist are refused one by one. The response begins with them, as in Kafka.

Versions 2 to 10:

* v2 to v4: the client's own retention time
* v6: leader epoch
* v7: instance id
* v8: flexible
* v9: errors of the consumer protocol (KIP-848)
* v10: topic ids instead of names (KIP-848)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from riverrun.coordinator.shard_kind import SupersededConnection
from riverrun.metadata.image import Image, TopicImage
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicId, TopicName
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.dispatch.router import Refused
from riverrun.server.requests.join_group import caller_of
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from riverrun.wire.messages.offset_commit_response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_SINCE: Final = 10


async def handle(
    services: BrokerServices, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    has_ids = context.api_version >= TOPIC_IDS_SINCE
    refused: list[OffsetCommitResponseTopic] = []
    accepted: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        known = _topic(services.metadata.current, topic, has_ids=has_ids)
        name = topic.name if known is None else known.name
        may_name = not has_ids or known is not None
        if may_name and not services.access.permits(
            context, AclOperation.READ, ResourceType.TOPIC, name
        ):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            refused.append(_results(topic, topic.partitions, code))
            continue
        if known is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.append(_results(topic, topic.partitions, code))
            continue
        count = len(known.partitions)
        good = tuple(one for one in topic.partitions if 0 <= one.partition_index < count)
        if len(good) != len(topic.partitions):
            bad = [one for one in topic.partitions if not 0 <= one.partition_index < count]
            refused.append(_results(topic, bad, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        if good:
            accepted.append(replace(topic, name=known.name, topic_id=known.id, partitions=good))
    if not accepted:
        return OffsetCommitResponse(topics=tuple(refused))
    wanted = replace(request, topics=tuple(accepted))
    try:
        committed = await services.groups.commit_offsets(caller_of(context), wanted)
    except SupersededConnection as error:
        raise Refused("superseded", f"{request.group_id}: {error}") from error
    except KafkaError as error:
        committed = failed(wanted, error.code, error.message)
    if not refused:
        return committed
    return OffsetCommitResponse(topics=_merged(refused, committed.topics, has_ids=has_ids))


def failed(
    request: OffsetCommitRequest, code: ErrorCode, message: str | None
) -> OffsetCommitResponse:
    topics = tuple(_results(topic, topic.partitions, code) for topic in request.topics)
    return OffsetCommitResponse(topics=topics)


def _topic(image: Image, topic: OffsetCommitRequestTopic, *, has_ids: bool) -> TopicImage | None:
    if not has_ids:
        return image.topics_by_name.get(TopicName(topic.name))
    return None if topic.topic_id is None else image.topics_by_id.get(TopicId(topic.topic_id))


def _results(
    topic: OffsetCommitRequestTopic,
    partitions: Iterable[OffsetCommitRequestPartition],
    code: ErrorCode,
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=code)
            for one in partitions
        ),
    )


def _merged(
    refused: Iterable[OffsetCommitResponseTopic],
    committed: Iterable[OffsetCommitResponseTopic],
    *,
    has_ids: bool,
) -> tuple[OffsetCommitResponseTopic, ...]:
    topics: dict[str | UUID | None, OffsetCommitResponseTopic] = {}
    for topic in (*refused, *committed):
        key = topic.topic_id if has_ids else topic.name
        first = topics.get(key)
        topics[key] = (
            topic
            if first is None
            else replace(first, partitions=first.partitions + topic.partitions)
        )
    return tuple(topics.values())
