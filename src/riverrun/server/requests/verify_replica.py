"""VerifyReplica: our own API, by which a leader compares a new replica with its own log.

Version 0, not advertised. It reads the replica. Only a new replica of a reassignment that is not in
sync is changed: it fetches again what differs.
"""

from __future__ import annotations

from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import BrokerServices
from riverrun.wire.private.verify_replica_request import VerifyReplicaRequest
from riverrun.wire.private.verify_replica_response import VerifyReplicaResponse


async def handle(
    services: BrokerServices, context: RequestContext, request: VerifyReplicaRequest
) -> VerifyReplicaResponse:
    return await services.copy_checker.check(request)
