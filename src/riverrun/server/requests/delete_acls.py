"""DeleteAcls: remove the access rules that match filters.

Versions 1 to 3. Decided by ``cluster/security/access_rules.py``.
SECURITY_DISABLED without an authorizer.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.security.access_rules import delete_acls
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.security.access import check_enabled
from riverrun.server.services import NodeServices
from riverrun.wire.messages.delete_acls_request import DeleteAclsRequest
from riverrun.wire.messages.delete_acls_response import DeleteAclsFilterResult, DeleteAclsResponse


def handle(
    services: NodeServices, context: RequestContext, request: DeleteAclsRequest
) -> Awaitable[DeleteAclsResponse]:
    check_enabled(services.access)
    return services.controller.submit(lambda image: delete_acls(image, request))


def failed(request: DeleteAclsRequest, code: ErrorCode, message: str | None) -> DeleteAclsResponse:
    result = DeleteAclsFilterResult(error_code=code, error_message=message, matching_acls=())
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=(result,) * len(request.filters))
