"""AlterPartitionReassignments: moves partitions to other brokers, or cancels that (KIP-455);
decided by ``cluster/partitions/reassignment.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

import structlog

from riverrun.cluster.decision import Decision
from riverrun.cluster.partitions.reassignment import (
    alter_partition_reassignments,
    targets_below_minimum,
)
from riverrun.metadata.image import Image
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.alter_partition_reassignments_request import (
    AlterPartitionReassignmentsRequest,
)
from riverrun.wire.messages.alter_partition_reassignments_response import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

log = structlog.get_logger("riverrun.controller")


def handle(
    services: NodeServices, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Awaitable[AlterPartitionReassignmentsResponse]:
    def decide(image: Image) -> Decision[AlterPartitionReassignmentsResponse]:
        decision = alter_partition_reassignments(services.configs, image, request)
        if decision.records:
            log.info("reassignment", partitions=len(decision.records))
            for topic, replicas, minimum in targets_below_minimum(services.configs, image, request):
                log.warning(
                    "the target has fewer replicas than min.insync.replicas",
                    topic=topic,
                    replicas=replicas,
                    min_insync_replicas=minimum,
                )
        return decision

    return services.controller.submit(decide)


def failed(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, message: str | None
) -> AlterPartitionReassignmentsResponse:
    """The error of the whole request, also for each partition, as in Kafka."""
    return AlterPartitionReassignmentsResponse(
        throttle_time_ms=0,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        error_message=message,
        responses=tuple(
            ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ReassignablePartitionResponse(
                        partition_index=one.partition_index, error_code=code, error_message=message
                    )
                    for one in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
