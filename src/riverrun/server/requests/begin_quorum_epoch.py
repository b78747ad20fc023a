"""BeginQuorumEpoch, versions 0 and 1: a new leader of the quorum announces itself (KIP-595)."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.raft.messages import BeginQuorumEpochResponse as Answer
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import begin_from, check_cluster, receive
from riverrun.server.quorum.responses import begin_to
from riverrun.server.services import NodeServices
from riverrun.wire.messages.begin_quorum_epoch_request import BeginQuorumEpochRequest
from riverrun.wire.messages.begin_quorum_epoch_response import BeginQuorumEpochResponse


async def handle(
    services: NodeServices, context: RequestContext, request: BeginQuorumEpochRequest
) -> BeginQuorumEpochResponse:
    check_cluster(services, request.cluster_id)
    return begin_to(await receive(services, begin_from(request, services.metadata.me.key), Answer))


def failed(
    request: BeginQuorumEpochRequest, code: ErrorCode, message: str | None
) -> BeginQuorumEpochResponse:
    return BeginQuorumEpochResponse(error_code=code, topics=())
