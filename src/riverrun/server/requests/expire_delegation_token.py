"""ExpireDelegationToken, versions 1 and 2: ends the life of a token (KIP-48).

Decided by ``cluster/security/delegation_tokens.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.delegation_tokens import expire_token
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.token_requests import check_token_request, failed_expiry_ms
from riverrun.server.services import NodeServices
from riverrun.wire.messages.expire_delegation_token_request import ExpireDelegationTokenRequest
from riverrun.wire.messages.expire_delegation_token_response import ExpireDelegationTokenResponse


def handle(
    services: NodeServices, context: RequestContext, request: ExpireDelegationTokenRequest
) -> Awaitable[ExpireDelegationTokenResponse]:
    check_token_request(context)
    return services.controller.submit(
        lambda image: expire_token(
            image,
            request,
            context.principal,
            services.settings.delegation_token,
            services.clock.now_ms(),
        )
    )


def failed(
    request: ExpireDelegationTokenRequest, code: ErrorCode, message: str | None
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(
        error_code=code, expiry_timestamp_ms=failed_expiry_ms(code), throttle_time_ms=0
    )
