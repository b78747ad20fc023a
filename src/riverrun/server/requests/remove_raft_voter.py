"""RemoveRaftVoter, version 0: remove a voter from the quorum (KIP-853)."""

from __future__ import annotations

from riverrun.raft.messages import ChangeVotersResponse
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, receive, remove_from
from riverrun.server.services import NodeServices
from riverrun.wire.messages.remove_raft_voter_request import RemoveRaftVoterRequest
from riverrun.wire.messages.remove_raft_voter_response import RemoveRaftVoterResponse


async def handle(
    services: NodeServices, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    check_cluster(services, request.cluster_id)
    response = await receive(services, remove_from(request), ChangeVotersResponse)
    return RemoveRaftVoterResponse(
        throttle_time_ms=0, error_code=response.error, error_message=response.message
    )
