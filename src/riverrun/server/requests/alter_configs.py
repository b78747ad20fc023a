"""AlterConfigs: replaces all settings of a resource;
decided by ``cluster/configs/alter_configs.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.configs.alter_configs import alter_configs
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.alter_configs_request import AlterConfigsRequest
from riverrun.wire.messages.alter_configs_response import (
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: AlterConfigsRequest
) -> Awaitable[AlterConfigsResponse]:
    return services.controller.submit(lambda image: alter_configs(services.configs, image, request))


def failed(
    request: AlterConfigsRequest, code: ErrorCode, message: str | None
) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        throttle_time_ms=0,
        responses=tuple(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource in request.resources
        ),
    )
