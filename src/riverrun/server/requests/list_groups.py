"""ListGroups: the groups that this node coordinates.

Behaviour:

* States and types are compared without regard to case. Unknown ones match nothing.

Versions 0 to 5:

* v3: flexible
* v4: filter by state (KIP-518)
* v5: filter by type (KIP-848)
"""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.list_groups_request import ListGroupsRequest
from riverrun.wire.messages.list_groups_response import ListGroupsResponse


def handle(
    services: BrokerServices, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse:
    groups = services.groups.list_groups(request.states_filter, request.types_filter)
    access, describe = services.access, AclOperation.DESCRIBE
    if not access.allows_cluster(context, describe):
        groups = [
            one
            for one in groups
            if access.allows(context, describe, ResourceType.GROUP, one.group_id)
        ]
    return ListGroupsResponse(error_code=ErrorCode.NONE, groups=tuple(groups))


def failed(request: ListGroupsRequest, code: ErrorCode, message: str | None) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=code, groups=())
