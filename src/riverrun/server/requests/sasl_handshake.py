"""SaslHandshake: choose the mechanism of a login (KIP-43).

Listeners with SASL handle it in ``server/security/sasl_router.py``. Here is the response on a
connection that needs no login: an error, and the connection stays.

Versions 0 to 1.
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.sasl_handshake_request import SaslHandshakeRequest
from riverrun.wire.messages.sasl_handshake_response import SaslHandshakeResponse


def handle(
    services: NodeServices, context: RequestContext, request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
