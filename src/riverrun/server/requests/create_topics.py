"""CreateTopics: creates topics; decided by ``cluster/topics/create_topics.py``."""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.topics.create_topics import create_topics
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import (
    CreatableTopicResult,
    CreateTopicsResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: CreateTopicsRequest
) -> Awaitable[CreateTopicsResponse]:
    return services.controller.submit(
        lambda image: create_topics(
            services.configs,
            image,
            request,
            services.randomness,
            services.controller.placement,
        )
    )


def failed(
    request: CreateTopicsRequest, code: ErrorCode, message: str | None
) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        throttle_time_ms=0,
        topics=tuple(
            CreatableTopicResult(
                name=topic.name, error_code=code, error_message=message, configs=()
            )
            for topic in request.topics
        ),
    )
