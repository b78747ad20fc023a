"""JoinGroup: join a group, or take part in its next generation.

Versions 0 to 9:

* v1: rebalance timeout
* v4: member id required (KIP-394)
* v5: static members (KIP-345)
* v6: flexible
* v7: protocol type; the protocol name may be null
* v8: reason (KIP-800)
* v9: skip assignment (KIP-814)
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from riverrun.coordinator.rebalance import join_error
from riverrun.coordinator.turn import Caller
from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.messages.join_group_request import JoinGroupRequest
from riverrun.wire.messages.join_group_response import JoinGroupResponse

NULL_PROTOCOL_SINCE: Final = 7


def caller_of(context: RequestContext) -> Caller:
    """The client, with its host as Java prints addresses: tools show and compare it."""
    return Caller(
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        api_version=context.api_version,
        connection=context.connection_id,
    )


async def handle(
    services: BrokerServices, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse:
    try:
        response = await services.groups.join_group(caller_of(context), request)
    except KafkaError as error:
        response = join_error(error.code, request.member_id)
    if response.protocol_name is None and context.api_version < NULL_PROTOCOL_SINCE:
        return replace(response, protocol_name="")
    return response


def failed(request: JoinGroupRequest, code: ErrorCode, message: str | None) -> JoinGroupResponse:
    """The response to a request without the right. Kafka does not repeat the member id."""
    return replace(join_error(code, ""), protocol_name="")
