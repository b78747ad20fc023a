"""DeleteTopics: deletes topics by name or id; decided by ``cluster/topics/delete_topics.py``.

* v3: TOPIC_DELETION_DISABLED; before, INVALID_REQUEST
* v6: topics by id instead of name (KIP-516)
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from riverrun.cluster.topics.delete_topics import delete_topics
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.model.ids import TopicId
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import (
    DeletableTopicResult,
    DeleteTopicsResponse,
)

FIRST_WITH_DELETION_DISABLED: Final = 3
STRICT_FROM: Final = 5
"""Refuses topics above the quota from this version on (KIP-599). Before, the client must wait."""


async def handle(
    services: NodeServices, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    request, refused = _allowed(services, context, request)
    permits = services.quotas.mutations(context, is_strict=context.api_version >= STRICT_FROM)
    try:
        deleted = await services.controller.submit(
            lambda image: delete_topics(services.configs, image, request, permits.take)
        )
        return replace(
            deleted,
            responses=(*deleted.responses, *refused),
            throttle_time_ms=permits.throttle_ms,
        )
    except KafkaError as error:
        if (
            error.code is ErrorCode.TOPIC_DELETION_DISABLED
            and context.api_version < FIRST_WITH_DELETION_DISABLED
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST) from None
        raise


def _allowed(
    services: NodeServices, context: RequestContext, request: DeleteTopicsRequest
) -> tuple[DeleteTopicsRequest, list[DeletableTopicResult]]:
    """The topics that the principal may delete, and the results for the others.

    The name of a topic that is requested by its id is shown only to those who may describe it.
    """
    access, image = services.access, services.metadata.newest
    wanted = request.topics or tuple(
        DeleteTopicState(name=name, topic_id=None) for name in request.topic_names
    )
    allowed: list[DeleteTopicState] = []
    refused: list[DeletableTopicResult] = []
    for one in wanted:
        by_id = None if one.topic_id is None else image.topics_by_id.get(TopicId(one.topic_id))
        name = one.name if by_id is None else by_id.name
        if name is None or access.permits_topic(context, AclOperation.DELETE, name):
            allowed.append(one)
            continue
        can_see = access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
        refused.append(
            DeletableTopicResult(
                name=name if one.name is not None or can_see else None,
                topic_id=one.topic_id,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message="Topic authorization failed.",
            )
        )
    return replace(request, topics=tuple(allowed), topic_names=()), refused


def failed(
    request: DeleteTopicsRequest, code: ErrorCode, message: str | None
) -> DeleteTopicsResponse:
    wanted = request.topics or tuple(
        DeleteTopicState(name=name, topic_id=None) for name in request.topic_names
    )
    return DeleteTopicsResponse(
        throttle_time_ms=0,
        responses=tuple(
            DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=message
            )
            for topic in wanted
        ),
    )
