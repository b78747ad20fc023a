"""SaslAuthenticate: a step of a login, or of its repetition on the same connection (KIP-368).

Listeners with SASL handle it in ``server/security/sasl_router.py``. Here is the response on a
connection that needs no login: an error, and the connection stays.

Versions 0 to 2.
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.sasl_authenticate_request import SaslAuthenticateRequest
from riverrun.wire.messages.sasl_authenticate_response import SaslAuthenticateResponse


def handle(
    services: NodeServices, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
