"""FetchSnapshot, versions 0 and 1: sends a snapshot of the metadata log to a replica (KIP-630)."""

from __future__ import annotations

from riverrun.model.errors import ErrorCode
from riverrun.raft.messages import FetchSnapshotResponse as Answer
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, fetch_snapshot_from, receive
from riverrun.server.quorum.responses import fetch_snapshot_to
from riverrun.server.services import NodeServices
from riverrun.wire.messages.fetch_snapshot_request import FetchSnapshotRequest
from riverrun.wire.messages.fetch_snapshot_response import FetchSnapshotResponse


async def handle(
    services: NodeServices, context: RequestContext, request: FetchSnapshotRequest
) -> FetchSnapshotResponse:
    check_cluster(services, request.cluster_id)
    return fetch_snapshot_to(await receive(services, fetch_snapshot_from(request), Answer))


def failed(
    request: FetchSnapshotRequest, code: ErrorCode, message: str | None
) -> FetchSnapshotResponse:
    return FetchSnapshotResponse(throttle_time_ms=0, error_code=code, topics=())
