"""BrokerRegistration, versions 0 to 4; decided by ``cluster/brokers/registration.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.broker_registration_request import BrokerRegistrationRequest
from riverrun.wire.messages.broker_registration_response import BrokerRegistrationResponse


def handle(
    services: NodeServices, context: RequestContext, request: BrokerRegistrationRequest
) -> Awaitable[BrokerRegistrationResponse]:
    return services.controller.register(request, cluster_id=services.logs.cluster_id)
