"""CreatePartitions: adds partitions to topics;
decided by ``cluster/partitions/create_partitions.py``.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from riverrun.cluster.partitions.create_partitions import create_partitions
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_partitions_request import CreatePartitionsRequest
from riverrun.wire.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

STRICT_FROM: Final = 3
"""Refuses topics above the quota from this version on (KIP-599). Before, the client must wait."""


async def handle(
    services: NodeServices, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    access = services.access
    allowed = tuple(
        topic
        for topic in request.topics
        if access.permits(context, AclOperation.ALTER, ResourceType.TOPIC, topic.name)
    )
    wanted = replace(request, topics=allowed)
    permits = services.quotas.mutations(context, is_strict=context.api_version >= STRICT_FROM)
    made = await services.controller.submit(
        lambda image: create_partitions(
            services.configs,
            image,
            wanted,
            services.randomness,
            services.controller.placement,
            permits.take,
        )
    )
    refused = replace(request, topics=tuple(t for t in request.topics if t not in allowed))
    rejected = failed(refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    return replace(
        made, results=made.results + rejected.results, throttle_time_ms=permits.throttle_ms
    )


def failed(
    request: CreatePartitionsRequest, code: ErrorCode, message: str | None
) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        throttle_time_ms=0,
        results=tuple(
            CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=message)
            for topic in request.topics
        ),
    )
