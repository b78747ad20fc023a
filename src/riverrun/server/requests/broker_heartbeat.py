"""BrokerHeartbeat, versions 0 to 2; decided by ``cluster/brokers/heartbeats.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.model.errors import ErrorCode
from riverrun.model.ids import NodeId
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.broker_heartbeat_request import BrokerHeartbeatRequest
from riverrun.wire.messages.broker_heartbeat_response import BrokerHeartbeatResponse


def handle(
    services: NodeServices, context: RequestContext, request: BrokerHeartbeatRequest
) -> Awaitable[BrokerHeartbeatResponse]:
    services.brokers_by_connection[context.connection_id] = NodeId(request.broker_id)
    return services.controller.heartbeat(request)


def failed(
    request: BrokerHeartbeatRequest, code: ErrorCode, message: str | None
) -> BrokerHeartbeatResponse:
    return BrokerHeartbeatResponse(throttle_time_ms=0, error_code=code, should_shut_down=False)
