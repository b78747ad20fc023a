"""UnregisterBroker, version 0; judged by ``cluster/brokers/registration.py``."""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.parts import Parts
from riverrun.wire.messages.unregister_broker_request import UnregisterBrokerRequest
from riverrun.wire.messages.unregister_broker_response import UnregisterBrokerResponse


def handle(
    parts: Parts, context: RequestContext, request: UnregisterBrokerRequest
) -> Awaitable[UnregisterBrokerResponse]:
    return parts.controller.unregister(request)
