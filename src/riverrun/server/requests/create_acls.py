"""CreateAcls: add access rules.

Versions 1 to 3. Decided by ``cluster/security/access_rules.py``.
SECURITY_DISABLED without an authorizer.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.access_rules import create_acls
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import check_enabled
from riverrun.server.services import NodeServices
from riverrun.wire.messages.create_acls_request import CreateAclsRequest
from riverrun.wire.messages.create_acls_response import AclCreationResult, CreateAclsResponse


def handle(
    services: NodeServices, context: RequestContext, request: CreateAclsRequest
) -> Awaitable[CreateAclsResponse]:
    check_enabled(services.access)
    return services.controller.submit(
        lambda image: create_acls(image, request, services.randomness)
    )


def failed(request: CreateAclsRequest, code: ErrorCode, message: str | None) -> CreateAclsResponse:
    result = AclCreationResult(error_code=code, error_message=message)
    return CreateAclsResponse(throttle_time_ms=0, results=(result,) * len(request.creations))
