"""Fetch on the controller listener: replicas of the metadata log follow its leader (KIP-595).

A fetch at the end of the log waits until there are more records, the high watermark moves, or its
time is up. Its offset acknowledges that all records before it are on the follower's disk.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from riverrun.model.errors import ErrorCode, KafkaError
from riverrun.raft.messages import FetchRequest, FetchResponse
from riverrun.security.acls import AclOperation
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.quorum.requests import check_cluster, fetch_from, receive
from riverrun.server.quorum.responses import fetch_to
from riverrun.wire.fetch import TOPIC_IDS_FROM, encode_fetch_response, parse_fetch

if TYPE_CHECKING:
    from riverrun.ports.files import Buffer
    from riverrun.server.services import NodeServices


def handle_frame(
    services: NodeServices, context: RequestContext, buffer: memoryview, at: int
) -> list[Buffer] | Awaitable[list[Buffer]]:
    version = context.api_version
    call = parse_fetch(buffer, at, version)
    try:
        services.access.require_cluster(context, AclOperation.CLUSTER_ACTION)
        check_cluster(services, call.cluster_id)
        request = fetch_from(call)
    except KafkaError as error:
        return encode_fetch_response(version, [], error_code=error.code)
    return _fetch(services, request, version)


async def _fetch(services: NodeServices, request: FetchRequest, version: int) -> list[Buffer]:
    try:
        response = await receive(services, request, FetchResponse)
    except KafkaError:
        return encode_fetch_response(version, [], error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return fetch_to(response, version, TOPIC_IDS_FROM)
