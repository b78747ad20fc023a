"""ListPartitionReassignments: the reassignments in progress (KIP-455);
decided by ``cluster/partitions/reassignment.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.reassignment import list_partition_reassignments
from riverrun.model.errors import ErrorCode
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from riverrun.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


def handle(
    services: NodeServices, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Awaitable[ListPartitionReassignmentsResponse]:
    return services.controller.submit(lambda image: list_partition_reassignments(image, request))


def failed(
    request: ListPartitionReassignmentsRequest, code: ErrorCode, message: str | None
) -> ListPartitionReassignmentsResponse:
    """Kafka repeats the requested partitions."""
    topics = tuple(
        OngoingTopicReassignment(
            name=topic.name,
            partitions=tuple(
                OngoingPartitionReassignment(partition_index=index)
                for index in topic.partition_indexes
            ),
        )
        for topic in request.topics or ()
    )
    return ListPartitionReassignmentsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, topics=topics
    )
