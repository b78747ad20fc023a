"""UpdateRaftVoter, version 0: a voter announces its new endpoints (KIP-853)."""

from __future__ import annotations

from riverrun.raft.messages import ChangeVotersResponse
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, receive, update_from
from riverrun.server.quorum.responses import update_to
from riverrun.server.services import NodeServices
from riverrun.wire.messages.update_raft_voter_request import UpdateRaftVoterRequest
from riverrun.wire.messages.update_raft_voter_response import UpdateRaftVoterResponse


async def handle(
    services: NodeServices, context: RequestContext, request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    check_cluster(services, request.cluster_id)
    return update_to(await receive(services, update_from(request), ChangeVotersResponse))
