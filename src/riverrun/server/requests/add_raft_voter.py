"""AddRaftVoter, versions 0 and 1: add a voter to the quorum once it has caught up (KIP-853)."""

from __future__ import annotations

from riverrun.raft.messages import ChangeVotersResponse
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import add_from, check_cluster, receive
from riverrun.server.services import NodeServices
from riverrun.wire.messages.add_raft_voter_request import AddRaftVoterRequest
from riverrun.wire.messages.add_raft_voter_response import AddRaftVoterResponse


async def handle(
    services: NodeServices, context: RequestContext, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    check_cluster(services, request.cluster_id)
    response = await receive(services, add_from(request), ChangeVotersResponse)
    return AddRaftVoterResponse(
        throttle_time_ms=0, error_code=response.error, error_message=response.message
    )
