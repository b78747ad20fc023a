"""RemoveRaftVoter, version 0: one voter of the quorum less (KIP-853)."""

from __future__ import annotations

from riverrun.raft.messages import ChangeVotersResponse
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.parts import Parts
from riverrun.server.quorum.access import ask, check_cluster
from riverrun.server.quorum.requests import remove_from
from riverrun.wire.messages.remove_raft_voter_request import RemoveRaftVoterRequest
from riverrun.wire.messages.remove_raft_voter_response import RemoveRaftVoterResponse


async def handle(
    parts: Parts, context: RequestContext, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    check_cluster(parts, request.cluster_id)
    answer = await ask(parts, remove_from(request), ChangeVotersResponse)
    return RemoveRaftVoterResponse(
        throttle_time_ms=0, error_code=answer.error, error_message=answer.message
    )
