"""CreatePartitions: adds partitions to topics;
decided by ``cluster/partitions/create_partitions.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.create_partitions import create_partitions
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_partitions_request import CreatePartitionsRequest
from riverrun.wire.messages.create_partitions_response import (
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)


def handle(
    services: NodeServices, context: RequestContext, request: CreatePartitionsRequest
) -> Awaitable[CreatePartitionsResponse]:
    return services.controller.submit(
        lambda image: create_partitions(
            services.configs,
            image,
            request,
            services.randomness,
            services.controller.placement,
        )
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
