"""DeleteGroups: delete empty groups with all their offsets (KIP-229).

Versions 0 to 2:

* v2: flexible
"""

from __future__ import annotations

import asyncio

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.delete_groups_request import DeleteGroupsRequest
from riverrun.wire.messages.delete_groups_response import (
    DeletableGroupResult,
    DeleteGroupsResponse,
)


async def handle(
    services: BrokerServices, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    async def delete(group_id: str) -> DeletableGroupResult:
        try:
            services.access.require(context, AclOperation.DELETE, ResourceType.GROUP, group_id)
            return await services.groups.delete_group(group_id)
        except KafkaError as error:
            return DeletableGroupResult(group_id=group_id, error_code=error.code)

    results = await asyncio.gather(*(delete(one) for one in dict.fromkeys(request.groups_names)))
    return DeleteGroupsResponse(throttle_time_ms=0, results=tuple(results))


def failed(
    request: DeleteGroupsRequest, code: ErrorCode, message: str | None
) -> DeleteGroupsResponse:
    results = (DeletableGroupResult(group_id=one, error_code=code) for one in request.groups_names)
    return DeleteGroupsResponse(throttle_time_ms=0, results=tuple(results))
