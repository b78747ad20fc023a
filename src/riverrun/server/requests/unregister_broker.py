"""UnregisterBroker: removes a broker registration;
decided by ``cluster/brokers/registration.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse


def handle(
    services: NodeServices, context: RequestContext, request: UnregisterBrokerRequest
) -> Awaitable[UnregisterBrokerResponse]:
    return services.controller.unregister(request)
