"""Vote, versions 0 to 2: a candidate requests the vote of this node (KIP-595, KIP-996)."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.raft.messages import VoteResponse as Answer
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, receive, vote_from
from riverrun.server.quorum.responses import vote_to
from riverrun.server.services import NodeServices
from riverrun.wire.messages.vote_request import VoteRequest
from riverrun.wire.messages.vote_response import VoteResponse


async def handle(
    services: NodeServices, context: RequestContext, request: VoteRequest
) -> VoteResponse:
    check_cluster(services, request.cluster_id)
    return vote_to(await receive(services, vote_from(request, services.metadata.me.key), Answer))


def failed(request: VoteRequest, code: ErrorCode, message: str | None) -> VoteResponse:
    return VoteResponse(error_code=code, topics=())
