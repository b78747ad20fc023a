"""ElectLeaders: elects preferred leaders, or unclean ones on request;
decided by ``cluster/partitions/elect_leaders.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.elect_leaders import elect_leaders
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.elect_leaders_request import ElectLeadersRequest
from riverrun.wire.messages.elect_leaders_response import (
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


def handle(
    services: NodeServices, context: RequestContext, request: ElectLeadersRequest
) -> Awaitable[ElectLeadersResponse]:
    return services.controller.submit(lambda image: elect_leaders(services.configs, image, request))


def failed(
    request: ElectLeadersRequest, code: ErrorCode, message: str | None
) -> ElectLeadersResponse:
    """Version 0 has no error for the whole request, so each partition has it (KIP-460)."""
    return ElectLeadersResponse(
        throttle_time_ms=0,
        error_code=code,
        replica_election_results=tuple(
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    PartitionResult(partition_id=index, error_code=code, error_message=message)
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )
