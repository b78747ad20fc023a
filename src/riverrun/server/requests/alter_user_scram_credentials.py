"""AlterUserScramCredentials: set or remove passwords of users (KIP-554).

Version 0. Decided by ``cluster/security/scram_users.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.scram_users import alter_user_scram_credentials
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.alter_user_scram_credentials_request import (
    AlterUserScramCredentialsRequest,
)
from riverrun.wire.messages.alter_user_scram_credentials_response import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)


def handle(
    services: NodeServices, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> Awaitable[AlterUserScramCredentialsResponse]:
    return services.controller.submit(
        lambda image: alter_user_scram_credentials(image, request, services.randomness)
    )


def failed(
    request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None
) -> AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions] + [one.name for one in request.upsertions]
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=tuple(
            AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)
            for user in dict.fromkeys(names)
        ),
    )
