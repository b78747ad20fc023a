"""Heartbeat: a member is alive, and learns whether it must join again.

v3 static members (KIP-345) · v4 flexible. Answered at once: nothing is written.
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
    # While the group is being loaded its sessions have not begun: nothing is wrong with the member.
    is_loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if is_loading else code)
