"""Heartbeat: keeps a member's session alive, and tells the member when to join again.

Behaviour:

* The response leaves at once, because nothing is written.
* While the group is loaded, sessions have not begun, and the response has no error.

Versions 0 to 4:

* v3: static members (KIP-345)
* v4: flexible
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.heartbeat_request import HeartbeatRequest
from riverrun.wire.messages.heartbeat_response import HeartbeatResponse


def handle(
    services: BrokerServices, context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse:
    return services.groups.heartbeat(request)


def failed(request: HeartbeatRequest, code: ErrorCode, message: str | None) -> HeartbeatResponse:
    is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else code)
