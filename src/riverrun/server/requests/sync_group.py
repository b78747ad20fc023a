"""SyncGroup: the group's leader sends the assignment, and each member gets its part.

Versions 0 to 5:

* v3: static members (KIP-345)
* v4: flexible
* v5: protocol type and name, which are validated (KIP-559)
"""

from __future__ import annotations

from typing import Final

from riverrun.coordinator.rebalance import sync_error
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.sync_group_request import SyncGroupRequest
from riverrun.wire.messages.sync_group_response import SyncGroupResponse

PROTOCOL_SINCE: Final = 5


async def handle(
    services: BrokerServices, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse:
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= PROTOCOL_SINCE and not is_named:
        return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return await services.groups.sync_group(request)


def failed(request: SyncGroupRequest, code: ErrorCode, message: str | None) -> SyncGroupResponse:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # The rebalance was lost with the previous coordinator. Clients expect this code here and
        # join again; they treat the other code as a bug.
        code = ErrorCode.REBALANCE_IN_PROGRESS
    return sync_error(code)
