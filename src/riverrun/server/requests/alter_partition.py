"""AlterPartition, versions 2 and 3; decided by ``cluster/partitions/alter_partition.py``.

Served on the controller listener.
"""

from __future__ import annotations

from collections.abc import Awaitable

from riverrun.cluster.partitions.alter_partition import alter_partition
from riverrun.server.dispatch.context import RequestContext
from riverrun.server.services import NodeServices
from riverrun.wire.messages.alter_partition_request import AlterPartitionRequest
from riverrun.wire.messages.alter_partition_response import AlterPartitionResponse


def handle(
    services: NodeServices, context: RequestContext, request: AlterPartitionRequest
) -> Awaitable[AlterPartitionResponse]:
    controller = services.controller
    return controller.submit(
        lambda image: alter_partition(
            services.configs, image, request, departing=controller.departing
        ),
        is_urgent=True,
    )
