"""CreateDelegationToken, versions 1 to 3: makes a login for programs of a user (KIP-48).

Decided by ``cluster/security/delegation_tokens.py``. Behaviour:

* A user may always create tokens for itself. For another owner it needs the right CreateTokens on
  that user (version 3, KIP-373). Owners and renewers are of the kind User.
* A failed response names owner and requester too. Its times are -1, or 0 if there are no tokens
  at all.
"""

from __future__ import annotations

from riverrun.cluster.security.delegation_tokens import check_principals, create_token, token_owner
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.security.principal import ANONYMOUS, Principal
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.token_requests import check_token_request
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_delegation_token_request import CreateDelegationTokenRequest
from riverrun.wire.messages.create_delegation_token_response import CreateDelegationTokenResponse

NO_TIME = -1


async def handle(
    services: NodeServices, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    requester = context.principal
    owner = token_owner(request, requester)
    try:
        check_token_request(context)
        if str(owner) != str(requester):
            services.access.require(
                context, AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)
            )
        check_principals(owner, request)
        return await services.controller.submit(
            lambda _: create_token(
                request,
                requester,
                services.settings.delegation_token,
                services.randomness,
                services.clock.now_ms(),
            )
        )
    except KafkaError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise  # the broker that forwarded the request looks for the next controller
        return _failure(error.code, owner, requester)


def failed(
    request: CreateDelegationTokenRequest, code: ErrorCode, message: str | None
) -> CreateDelegationTokenResponse:
    return _failure(code, ANONYMOUS, ANONYMOUS)


def _failure(
    code: ErrorCode, owner: Principal, requester: Principal
) -> CreateDelegationTokenResponse:
    time_ms = 0 if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED else NO_TIME
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
        throttle_time_ms=0,
    )
