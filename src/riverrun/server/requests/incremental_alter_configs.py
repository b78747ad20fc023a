"""IncrementalAlterConfigs: changes single settings (KIP-339);
decided by ``cluster/configs/alter_configs.py``.
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.cluster.configs.alter_configs import incremental_alter_configs
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import divided_by_config_right
from riverrun.server.services import NodeServices
from riverrun.wire.messages.incremental_alter_configs_request import (
    IncrementalAlterConfigsRequest,
)
from riverrun.wire.messages.incremental_alter_configs_response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)


async def handle(
    services: NodeServices, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    allowed, refused = divided_by_config_right(
        services.access, context, AclOperation.ALTER_CONFIGS, request.resources
    )
    wanted = replace(request, resources=tuple(allowed))
    altered = await services.controller.submit(
        lambda image: incremental_alter_configs(services.configs, image, wanted)
    )
    rejected = [
        failed(replace(request, resources=(one,)), error.code, error.message).responses[0]
        for one, error in refused
    ]
    return replace(altered, responses=(*altered.responses, *rejected))


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
