"""RenewDelegationToken, versions 1 and 2: extends the life of a token (KIP-48).

Decided by ``cluster/security/delegation_tokens.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.delegation_tokens import renew_token
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.token_requests import check_token_request, failed_expiry_ms
from riverrun.server.services import NodeServices
from riverrun.wire.messages.renew_delegation_token_request import RenewDelegationTokenRequest
from riverrun.wire.messages.renew_delegation_token_response import RenewDelegationTokenResponse


def handle(
    services: NodeServices, context: RequestContext, request: RenewDelegationTokenRequest
) -> Awaitable[RenewDelegationTokenResponse]:
    check_token_request(context)
    return services.controller.submit(
        lambda image: renew_token(
            image,
            request,
            context.principal,
            services.settings.delegation_token,
            services.clock.now_ms(),
        )
    )


def failed(
    request: RenewDelegationTokenRequest, code: ErrorCode, message: str | None
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(
        error_code=code, expiry_timestamp_ms=failed_expiry_ms(code), throttle_time_ms=0
    )
