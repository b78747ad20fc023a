"""IncrementalAlterConfigs: changes single settings (KIP-339);
decided by ``cluster/configs/alter_configs.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.configs.alter_configs import incremental_alter_configs
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.incremental_alter_configs_request import (
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> Awaitable[IncrementalAlterConfigsResponse]:
    return services.controller.submit(
        lambda image: incremental_alter_configs(services.configs, image, request)
    )


def failed(
    request: IncrementalAlterConfigsRequest, code: ErrorCode, message: str | None
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
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
