"""ListPartitionReassignments: the reassignments in progress (KIP-455);
decided by ``cluster/partitions/reassignment.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.reassignment import list_partition_reassignments
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.list_partition_reassignments_request import (
    ListPartitionReassignmentsRequest,
)
from riverrun.wire.messages.list_partition_reassignments_response import (
    ListPartitionReassignmentsResponse,
)


def handle(
    services: NodeServices, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> Awaitable[ListPartitionReassignmentsResponse]:
    return services.controller.submit(lambda image: list_partition_reassignments(image, request))
