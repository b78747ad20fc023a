"""LeaveGroup: a member leaves, or an administrator removes some.

Versions 0 to 5:

* v3: several members, static members by instance id (KIP-345)
* v4: flexible
* v5: reason (KIP-800)
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.leave_group_request import LeaveGroupRequest, MemberIdentity
from riverrun.wire.messages.leave_group_response import LeaveGroupResponse

MANY_MEMBERS_SINCE: Final = 3


async def handle(
    services: BrokerServices, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse:
    if context.api_version >= MANY_MEMBERS_SINCE:
        return await services.groups.leave_group(request)
    alone = replace(request, members=(MemberIdentity(member_id=request.member_id),))
    response = await services.groups.leave_group(alone)
    return LeaveGroupResponse(error_code=response.members[0].error_code)


def failed(request: LeaveGroupRequest, code: ErrorCode, message: str | None) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code)
