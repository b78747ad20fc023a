"""EndQuorumEpoch, versions 0 and 1: the leader of the quorum resigns (KIP-595)."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.raft.messages import EndQuorumEpochResponse as Answer
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, end_from, receive
from riverrun.server.quorum.responses import end_to
from riverrun.server.services import NodeServices
from riverrun.wire.messages.end_quorum_epoch_request import EndQuorumEpochRequest
from riverrun.wire.messages.end_quorum_epoch_response import EndQuorumEpochResponse


async def handle(
    services: NodeServices, context: RequestContext, request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    check_cluster(services, request.cluster_id)
    return end_to(await receive(services, end_from(request), Answer))


def failed(
    request: EndQuorumEpochRequest, code: ErrorCode, message: str | None
) -> EndQuorumEpochResponse:
    return EndQuorumEpochResponse(error_code=code, topics=())
