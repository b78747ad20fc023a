"""CreateTopics: creates topics; decided by ``cluster/topics/create_topics.py``."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from riverrun.cluster.topics.create_topics import create_topics
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_topics_request import CreateTopicsRequest
from riverrun.wire.messages.create_topics_response import (
    CreatableTopicResult,
    CreateTopicsResponse,
)

STRICT_FROM: Final = 6
"""Refuses topics above the quota from this version on (KIP-599). Before, the client must wait."""


async def handle(
    services: NodeServices, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    access = services.access
    allowed = tuple(
        topic
        for topic in request.topics
        if access.permits_topic(context, AclOperation.CREATE, topic.name)
    )
    wanted = replace(request, topics=allowed)
    permits = services.quotas.mutations(context, is_strict=context.api_version >= STRICT_FROM)
    made = await services.controller.submit(
        lambda image: create_topics(
            services.configs,
            image,
            wanted,
            services.randomness,
            services.controller.placement,
            permits.take,
        )
    )
    made = replace(made, throttle_time_ms=permits.throttle_ms)
    if not access.is_enabled and len(allowed) == len(request.topics):
        return made
    refused = [topic for topic in request.topics if topic not in allowed]
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rejected = failed(replace(request, topics=tuple(refused)), code, "Authorization failed.")
    described = tuple(_visible(services, context, topic) for topic in made.topics)
    return replace(made, topics=described + rejected.topics)


def _visible(
    services: NodeServices, context: RequestContext, topic: CreatableTopicResult
) -> CreatableTopicResult:
    """A result without the settings that the principal may not see."""
    operation = AclOperation.DESCRIBE_CONFIGS
    if topic.error_code is not ErrorCode.NONE or services.access.allows(
        context, operation, ResourceType.TOPIC, topic.name
    ):
        return topic
    return replace(
        topic,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
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
