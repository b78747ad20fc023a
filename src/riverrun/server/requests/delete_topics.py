"""DeleteTopics: deletes topics by name or id; decided by ``cluster/topics/delete_topics.py``.

* v3: TOPIC_DELETION_DISABLED; before, INVALID_REQUEST
* v6: topics by id instead of name (KIP-516)
"""

from __future__ import annotations

from typing import Final

from riverrun.cluster.topics.delete_topics import delete_topics
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from riverrun.wire.messages.delete_topics_response import (
    DeletableTopicResult,
    DeleteTopicsResponse,
)

FIRST_WITH_DELETION_DISABLED: Final = 3


async def handle(
    services: NodeServices, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    try:
        return await services.controller.submit(
            lambda image: delete_topics(services.configs, image, request)
        )
    except KafkaError as error:
        if (
            error.code is ErrorCode.TOPIC_DELETION_DISABLED
            and context.api_version < FIRST_WITH_DELETION_DISABLED
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST) from None
        raise


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
