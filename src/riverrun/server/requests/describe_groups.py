"""DescribeGroups: state, members and assignments of classic groups.

Versions 0 to 6:

* v3: authorized operations (KIP-430)
* v4: instance ids
* v5: flexible
* v6: unknown groups are an error (KIP-1043); before, they are dead groups
"""

from __future__ import annotations

from msgspec.structs import replace

from riverrun.coordinator.groups.description import described_error
from riverrun.model.errors import ErrorCode
from riverrun.security.acls import AclOperation, ResourceType
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.describe_groups_request import DescribeGroupsRequest
from riverrun.wire.messages.describe_groups_response import DescribedGroup, DescribeGroupsResponse


def handle(
    services: BrokerServices, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    access = services.access

    def describe(group_id: str) -> DescribedGroup:
        if not access.permits(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            return described_error(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        found = services.groups.describe_group(group_id, context.api_version)
        if request.include_authorized_operations and found.error_code is ErrorCode.NONE:
            operations = access.operations(context, ResourceType.GROUP, group_id)
            return replace(found, authorized_operations=operations)
        return found

    return DescribeGroupsResponse(groups=tuple(describe(one) for one in request.groups))


def failed(
    request: DescribeGroupsRequest, code: ErrorCode, message: str | None
) -> DescribeGroupsResponse:
    groups = tuple(described_error(one, code, message) for one in request.groups)
    return DescribeGroupsResponse(groups=groups)
