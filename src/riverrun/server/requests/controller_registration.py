"""ControllerRegistration, version 0; decided by ``cluster/brokers/registration.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.brokers.registration import register_controller
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.controller_registration_request import ControllerRegistrationRequest
from riverrun.wire.messages.controller_registration_response import ControllerRegistrationResponse


def handle(
    services: NodeServices, context: RequestContext, request: ControllerRegistrationRequest
) -> Awaitable[ControllerRegistrationResponse]:
    return services.controller.submit(lambda image: register_controller(image, request))
